"""BatchNorm by hand, where a model computes what it would see without writing it out."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def normalise(norm: nn.BatchNorm1d, rows: Tensor) -> Tensor:
    """BatchNorm of rows of channels, seen as one sample with many positions.

    On a CPU torch adds up a matrix of rows one after the other in single precision, and the mean of 400,000 rows is
    then off in the third digit. In this shape it does not, and other devices do not care.
    """
    normalised: Tensor = norm(rows.t().unsqueeze(0))
    return normalised.squeeze(0).t()


def fold(linear: nn.Linear, norm: nn.BatchNorm1d) -> tuple[Tensor, Tensor]:
    """Weight and bias, in double precision, of one map that does what a linear map and its BatchNorm do in evaluation.

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
    """Count one more batch: the running mean and variance to update, and this batch's share of both.

    It is BatchNorm's momentum, or without one what makes all batches count alike. The variance wanted is the unbiased.
    """
    assert norm.running_mean is not None
    assert norm.running_var is not None
    assert norm.num_batches_tracked is not None
    norm.num_batches_tracked.add_(1)
    share = 1 / int(norm.num_batches_tracked) if norm.momentum is None else norm.momentum
    return norm.running_mean, norm.running_var, share


def unbiased(rows: float) -> float:
    """What makes the variance of so many rows unbiased."""
    return rows / max(rows - 1, 1)
