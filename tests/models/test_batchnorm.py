"""BatchNorm by hand against torch's own."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils.fusion import fuse_linear_bn_eval

from fedstill.models.batchnorm import begin_batch, fold, normalise, unbiased


def drawn_norm(width: int, momentum: float | None = 0.1) -> nn.BatchNorm1d:
    norm = nn.BatchNorm1d(width, momentum=momentum)
    with torch.no_grad():
        for tensor in (norm.weight, norm.bias, norm.running_mean):
            assert tensor is not None
            tensor.normal_()
        assert norm.running_var is not None
        norm.running_var.uniform_(0.1, 2.0)
    return norm


@pytest.mark.parametrize("bias", [True, False])
def test_a_folded_map_is_what_torch_fuses(bias: bool) -> None:
    torch.manual_seed(3)
    linear, norm = nn.Linear(5, 7, bias=bias), drawn_norm(7)
    weight, shift = fold(linear, norm)
    fused = fuse_linear_bn_eval(linear.eval(), norm.eval())
    torch.testing.assert_close(weight.float(), fused.weight)
    torch.testing.assert_close(shift.float(), fused.bias)


@pytest.mark.parametrize("momentum", [0.1, None])
def test_running_statistics_go_as_torchs(momentum: float | None) -> None:
    """Three batches of different sizes: by the momentum, or all alike where there is none."""
    torch.manual_seed(4)
    ours, theirs = drawn_norm(6, momentum), drawn_norm(6, momentum)
    theirs.load_state_dict(ours.state_dict())
    for rows in (torch.randn(count, 6) for count in (4, 9, 31)):
        normalise(theirs, rows)
        mean, variance, share = begin_batch(ours)
        mean.lerp_(rows.mean(dim=0), share)
        variance.lerp_(rows.var(dim=0, correction=0) * unbiased(len(rows)), share)
    for name, tensor in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], tensor)
