"""BatchNorm statistics and folding, for models that do not materialise BatchNorm's inputs; GroupNorm in its place."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor, nn


class MomentsHook:
    """A forward pre-hook of a BatchNorm layer that needs only the mean and the variance of the layer's inputs.

    A model that computes BatchNorm without materialising its inputs passes the moments it has, and so does not have to
    leave its fast path for such a hook.
    """

    def __call__(self, layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        raise TypeError("a hook of this kind reads inputs in its own way")

    def moments(self, rows: float, mean: npt.NDArray[Any], variance: npt.NDArray[Any]) -> None:
        """What `__call__` would have found: the number of rows, and their mean and biased variance by channel."""
        raise TypeError("a hook of this kind reads moments in its own way")


def normalise(norm: nn.BatchNorm1d | nn.GroupNorm, rows: Tensor, clouds: int = 1) -> Tensor:
    """BatchNorm of rows of channels, treated as one sample with many positions; GroupNorm of each cloud's rows.

    On a CPU torch sums a matrix of rows sequentially in single precision, and the mean of 400,000 rows is then wrong in
    the third digit. This shape avoids the problem; on other devices it makes no difference.
    """
    if isinstance(norm, nn.GroupNorm):
        each = norm(rows.reshape(clouds, -1, rows.shape[1]).transpose(1, 2))
        return each.transpose(1, 2).reshape(rows.shape)  # type: ignore[no-any-return]
    normalised: Tensor = norm(rows.t().unsqueeze(0))
    return normalised.squeeze(0).t()


def fold(linear: nn.Linear, norm: nn.BatchNorm1d) -> tuple[Tensor, Tensor]:
    """Weight and bias, in double precision, of a linear map equal to a linear map and its BatchNorm in evaluation.

    torch's `fuse_linear_bn_eval` does this in single precision.
    """
    assert norm.running_mean is not None
    assert norm.running_var is not None
    scale = norm.weight.double() / torch.sqrt(norm.running_var.double() + norm.eps)
    start = torch.zeros_like(scale) if linear.bias is None else linear.bias.double()
    bias = norm.bias.double() + scale * (start - norm.running_mean.double())
    return linear.weight.double() * scale.unsqueeze(1), bias


@torch.no_grad()
def begin_batch(norm: nn.BatchNorm1d) -> tuple[Tensor, Tensor, float]:
    """Count one more batch: the running mean and variance to update, and this batch's weight in both.

    The weight is BatchNorm's momentum, or without one the weight that averages all batches equally. The variance to use
    is the unbiased one.
    """
    assert norm.running_mean is not None
    assert norm.running_var is not None
    assert norm.num_batches_tracked is not None
    norm.num_batches_tracked.add_(1)
    share = 1 / int(norm.num_batches_tracked) if norm.momentum is None else norm.momentum
    return norm.running_mean, norm.running_var, share


def unbiased(rows: float) -> float:
    """The factor that makes the variance of this many rows unbiased."""
    return rows / max(rows - 1, 1)
