"""Set abstraction, the layer of PointNet++: sample centres, group their neighbours, encode each neighbourhood.

"PointNet++: Deep Hierarchical Feature Learning on Point Sets in a Metric Space", https://arxiv.org/abs/1706.02413. The
1x1 convolutions of the paper are implemented as the equivalent linear maps of rows of channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from fedstill.models.batchnorm import MomentsHook, begin_batch, normalise, unbiased
from fedstill.models.kernels import ball_query, group
from fedstill.models.kernels.compact import Rows
from fedstill.models.pointnet2_fast import Report, TrainLevel, infer_level

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Ball:
    """The sampling of a level: centres, and the neighbours of each within a radius."""

    centres: int
    radius: float
    neighbours: int


class SetAbstraction(nn.Module):
    """One level: three linear maps with BatchNorm and ReLU for every row, the maximum over each neighbourhood.

    Without a ball the level treats each cloud as one neighbourhood with absolute coordinates. Coordinates, relative to
    the centre or absolute, always come first, then features. Relative ones are divided by `unit`; rows for `train_rows`
    and `infer_rows` must already be (`Rows.in_units`).
    """

    def __init__(self, ball: Ball | None, channels: int, widths: tuple[int, int, int], unit: float = 1.0) -> None:
        super().__init__()
        first, second, third = widths
        self.ball, self.unit = ball, unit
        self.linear1, self.norm1 = nn.Linear(3 + channels, first), nn.BatchNorm1d(first)
        self.linear2, self.norm2 = nn.Linear(first, second), nn.BatchNorm1d(second)
        self.linear3, self.norm3 = nn.Linear(second, third), nn.BatchNorm1d(third)

    def forward(self, points: Tensor, centres: Tensor, features: Tensor | None) -> Tensor:
        """(batch, centres, widths[-1]) in plain torch: every neighbourhood materialised, padding included."""
        if self.ball is None:
            rows = points.unsqueeze(1)
            features = None if features is None else features.unsqueeze(1)
        else:
            index = ball_query(points, centres, self.ball.radius, self.ball.neighbours)
            rows = group(points, index) - centres.unsqueeze(2)
            rows = rows / self.unit if self.unit != 1.0 else rows
            features = None if features is None else group(features, index)
        if features is not None:
            rows = torch.cat([rows, features], dim=-1)
        out = rows.flatten(0, -2)
        out = normalise(self.norm1, self.linear1(out), points.shape[0]).relu()
        out = normalise(self.norm2, self.linear2(out), points.shape[0]).relu()
        out = normalise(self.norm3, self.linear3(out), points.shape[0]).relu()
        return out.reshape(*rows.shape[:-1], out.shape[1]).amax(dim=2)

    def layers(self) -> list[tuple[nn.Linear, nn.BatchNorm1d]]:
        return [(self.linear1, self.norm1), (self.linear2, self.norm2), (self.linear3, self.norm3)]

    def train_rows(self, rows: Rows, features: Tensor | None) -> Tensor:
        """The result of `forward` in training mode, computed on distinct rows: one row of channels for each group."""
        layers = self.layers()

        def report(found: Sequence[tuple[Array, Array]]) -> None:
            for (linear, norm), (mean, variance) in zip(layers, found, strict=True):
                track(norm, mean + linear.bias.detach().double().numpy(), variance, rows.total)

        state = [tensor for linear, norm in layers for tensor in (linear.weight, linear.bias, norm.weight, norm.bias)]
        apply: Any = TrainLevel.apply
        out: Tensor = apply(rows, [norm.eps for _, norm in layers], report, features, *state)
        return out

    def infer_rows(self, rows: Rows, features: Tensor | None) -> Tensor:
        """The result of `forward` in evaluation, computed on distinct rows and without gradients."""
        layers = self.layers()

        def report(which: int) -> Report:
            linear, norm = layers[which]
            bias = linear.bias.detach().double().numpy()
            return lambda mean, variance: tell(norm, mean + bias, variance, rows.total)

        with torch.no_grad():
            return infer_level(rows, features, layers, {at: report(at) for at in range(3) if before(layers[at][1])})


def way_of(points: Tensor, model: nn.Module, levels: Sequence[SetAbstraction]) -> Literal["plain", "train", "infer"]:
    """Which implementation of the levels to use: distinct rows, in training or in evaluation, or plain torch.

    Plain torch is used for other devices and precisions, gradients of coordinates or in evaluation, hooks,
    tracing and GroupNorm. Hooks that need moments only (`MomentsHook`) do not count.
    """
    parameters = list(model.parameters())
    learns = torch.is_grad_enabled() and any(parameter.requires_grad for parameter in parameters)
    usual = all(tensor.device.type == "cpu" and tensor.dtype == torch.float32 for tensor in (points, *parameters))
    if (
        not usual
        or (points.requires_grad and torch.is_grad_enabled())
        or torch.is_autocast_enabled("cpu")
        or torch.compiler.is_compiling()
    ):
        return "plain"
    layers = [layer for level in levels for layer in level.layers()]
    if any(part._forward_hooks for layer in layers for part in layer) or any(before(linear) for linear, _ in layers):
        return "plain"
    if any(not isinstance(hook, MomentsHook) for _, norm in layers for hook in before(norm)):
        return "plain"
    if any(isinstance(norm, nn.GroupNorm) for _, norm in layers):
        return "plain"
    modes = {norm.training for _, norm in layers}
    if modes == {True}:
        return "train"
    return "infer" if modes == {False} and not learns else "plain"


def tell(norm: nn.BatchNorm1d, mean: Array, variance: Array, total: float) -> None:
    """Call the hooks of a layer, which need the moments of its inputs only: `way_of` has seen to that."""
    for hook in before(norm):
        hook.moments(total, mean, variance)


def before(part: nn.Module) -> list[Any]:
    """The hooks that are called before a layer."""
    return list(part._forward_pre_hooks.values())


@torch.no_grad()
def track(norm: nn.BatchNorm1d, mean: Array, variance: Array, total: float) -> None:
    """Update running statistics as BatchNorm does."""
    tell(norm, mean, variance, total)
    if not norm.track_running_stats:
        return
    running_mean, running_var, share = begin_batch(norm)
    running_mean.mul_(1 - share).add_(torch.from_numpy(mean.astype(np.float32)), alpha=share)
    running_var.mul_(1 - share).add_(torch.from_numpy((variance * unbiased(total)).astype(np.float32)), alpha=share)
