"""PointNet++ with single-scale grouping, and its compact student.

"PointNet++: Deep Hierarchical Feature Learning on Point Sets in a Metric Space", https://arxiv.org/abs/1706.02413.
Two levels of set abstraction, a third over the whole cloud, and a head of two hidden layers. Unlike popular ports
sampling starts at the first point, so that evaluation is deterministic.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedstill.core.errors import InputError
from fedstill.models.classifier import Classifier
from fedstill.models.kernels import farthest_points, group
from fedstill.models.kernels.compact import Geometry, compact_geometry
from fedstill.models.pointnet import cloud_shape, mlp_head, wants_points
from fedstill.models.pointnet2_levels import Ball, SetAbstraction
from fedstill.models.registry import models


class PointNet2(nn.Module):
    """Three levels of set abstraction: a cloud becomes one vector of 16 times `width` channels.

    In single precision on a CPU the levels run on distinct rows, with the same parameters and the same results;
    set `fast` to False for plain torch, which everything else uses: other devices and precisions, gradients of
    coordinates or in evaluation, parts with hooks, tracing.
    """

    fast = True

    def __init__(self, first: Ball, second: Ball, width: int) -> None:
        super().__init__()
        if second.centres > first.centres:
            raise InputError(f"the second level samples the first: {second.centres} of {first.centres} is too many")
        self.level1 = SetAbstraction(first, 0, (width, width, 2 * width))
        self.level2 = SetAbstraction(second, 2 * width, (2 * width, 2 * width, 4 * width))
        self.level3 = SetAbstraction(None, 4 * width, (4 * width, 8 * width, 16 * width))
        self.balls = first, second

    def forward(self, points: Tensor, geometry: Geometry | None = None) -> Tensor:
        way = self._way(points)
        if way == "plain":
            return self._plain(points)
        geometry = geometry or self.geometry(points)
        features: Tensor | None = None
        for level, rows in zip(self._levels(), (geometry.level1, geometry.level2, geometry.level3), strict=True):
            features = (level.train_rows if way == "train" else level.infer_rows)(rows, features)
        assert features is not None
        return features

    def geometry(self, points: Tensor) -> Geometry:
        """What `forward` would work out first; models that sample alike may share it, and clouds may keep it."""
        return compact_geometry(points, *self.balls)

    def _plain(self, points: Tensor) -> Tensor:
        first, second = self.balls
        chosen = farthest_points(points, first.centres)
        centres1 = group(points, chosen.unsqueeze(1)).squeeze(1)
        features = self.level1(points, centres1, None)
        # Sampling from a fixed start is nested: the second sample is how the first begins.
        centres2 = centres1[:, : second.centres]
        features = self.level2(centres1, centres2, features)
        pooled: Tensor = self.level3(centres2, centres2, features).squeeze(1)
        return pooled

    def _levels(self) -> list[SetAbstraction]:
        return [self.level1, self.level2, self.level3]

    def _way(self, points: Tensor) -> Literal["plain", "train", "infer"]:
        parameters = list(self.parameters())
        learns = torch.is_grad_enabled() and any(parameter.requires_grad for parameter in parameters)
        usual = all(tensor.device.type == "cpu" and tensor.dtype == torch.float32 for tensor in (points, *parameters))
        if (
            not (self.fast and usual)
            or (points.requires_grad and torch.is_grad_enabled())
            or torch.is_autocast_enabled("cpu")
            or torch.compiler.is_compiling()
        ):
            return "plain"
        layers = [layer for level in self._levels() for layer in level.layers()]
        if any(part._forward_hooks or part._forward_pre_hooks for layer in layers for part in layer):
            return "plain"
        modes = {norm.training for _, norm in layers}
        if modes == {True}:
            return "train"
        return "infer" if modes == {False} and not learns else "plain"


class PointNet2Classifier(Classifier):
    """PointNet++ with its head; geometry that was worked out before may come with the clouds."""

    extractor: PointNet2

    def forward(self, inputs: Tensor, geometry: Geometry | None = None) -> tuple[Tensor, Tensor]:
        features: Tensor = self.extractor(inputs, geometry)
        return F.log_softmax(self.head(features), dim=1), features


# What makes the lite models learn in a minute or two on a CPU; anything of it can be set otherwise.
LITE: dict[str, Any] = {
    "training": {"rate": 2e-3, "batch": 16, "schedule": "cosine"},
    "augmentation": {"name": "points", "dropout": 0.3},
}


def _classifier(
    shape: tuple[int, ...], classes: int, first: Ball, second: Ball, width: int, dropout: float
) -> PointNet2Classifier:
    cloud_shape(shape)
    head = mlp_head(16 * width, 8 * width, 4 * width, classes, dropout)
    return PointNet2Classifier(PointNet2(first, second, width), head, 16 * width)


@wants_points(1024)
@models.register("pointnet2")
def pointnet2(
    shape: tuple[int, ...],
    classes: int,
    *,
    width: int = 64,
    centres1: int = 512,
    radius1: float = 0.2,
    neighbours1: int = 32,
    centres2: int = 128,
    radius2: float = 0.4,
    neighbours2: int = 64,
    dropout: float = 0.4,
) -> PointNet2Classifier:
    """PointNet++ for clouds of about a thousand points: the teacher.

    Level widths in units of `width`: 1-1-2, 2-2-4, 4-8-16; head 8-4. With 40 classes 1,475,688 parameters and 6,667
    elements of buffers, 5.655 MiB.
    """
    first, second = Ball(centres1, radius1, neighbours1), Ball(centres2, radius2, neighbours2)
    return _classifier(shape, classes, first, second, width, dropout)


@wants_points(1024)
@models.register("small-pointnet2")
def small_pointnet2(
    shape: tuple[int, ...],
    classes: int,
    *,
    width: int = 32,
    centres1: int = 256,
    radius1: float = 0.2,
    neighbours1: int = 16,
    centres2: int = 64,
    radius2: float = 0.4,
    neighbours2: int = 32,
    dropout: float = 0.4,
) -> PointNet2Classifier:
    """PointNet++ at a quarter of the size: the student. With 40 classes 374,344 + 3,339 elements, 1.441 MiB."""
    first, second = Ball(centres1, radius1, neighbours1), Ball(centres2, radius2, neighbours2)
    return _classifier(shape, classes, first, second, width, dropout)


@wants_points(1024, **LITE)
@models.register("pointnet2-lite")
def pointnet2_lite(
    shape: tuple[int, ...],
    classes: int,
    *,
    width: int = 32,
    centres1: int = 64,
    radius1: float = 0.3,
    neighbours1: int = 16,
    centres2: int = 16,
    radius2: float = 0.6,
    neighbours2: int = 16,
    dropout: float = 0.4,
) -> PointNet2Classifier:
    """The teacher PointNet++ for clouds of a few hundred points on a CPU."""
    first, second = Ball(centres1, radius1, neighbours1), Ball(centres2, radius2, neighbours2)
    return _classifier(shape, classes, first, second, width, dropout)


@wants_points(1024, **LITE)
@models.register("small-pointnet2-lite")
def small_pointnet2_lite(
    shape: tuple[int, ...],
    classes: int,
    *,
    width: int = 16,
    centres1: int = 64,
    radius1: float = 0.3,
    neighbours1: int = 8,
    centres2: int = 16,
    radius2: float = 0.6,
    neighbours2: int = 8,
    dropout: float = 0.4,
) -> PointNet2Classifier:
    """The student PointNet++ for clouds of a few hundred points on a CPU."""
    first, second = Ball(centres1, radius1, neighbours1), Ball(centres2, radius2, neighbours2)
    return _classifier(shape, classes, first, second, width, dropout)
