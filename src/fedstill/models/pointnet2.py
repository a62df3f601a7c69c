"""PointNet++ with single-scale grouping, and its compact student.

"PointNet++: Deep Hierarchical Feature Learning on Point Sets in a Metric Space", https://arxiv.org/abs/1706.02413. Two
levels of set abstraction, a third over the whole cloud, and a head of two hidden layers. Unlike in popular ports
sampling starts at the first point, so that evaluation is deterministic.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from fedstill.models.builders import models, sized
from fedstill.models.classifier import Classifier
from fedstill.models.cloud_parts import cloud_shape, mlp_head, wants_points
from fedstill.models.kernels import farthest_points, rows_at
from fedstill.models.kernels.compact import Geometry, compact_geometry
from fedstill.models.kernels.latest import latest
from fedstill.models.pointnet2_levels import SetAbstraction, way_of
from fedstill.models.pointnet2_sizes import LITE_STUDENT, LITE_TEACHER, STUDENT, TEACHER, PointNet2Sizes


class PointNet2(nn.Module):
    """Three levels of set abstraction: a cloud becomes one vector of 16 times the sizes' `width` channels.

    In single precision on a CPU the levels compute distinct rows only, with the same parameters and the same results.
    Plain torch is used if `fast` is False and in all other cases: other devices and precisions, gradients of
    coordinates or in evaluation, parts with hooks, tracing.
    """

    fast = True

    def __init__(self, sizes: PointNet2Sizes) -> None:
        super().__init__()
        self.level1, self.level2, self.level3 = sizes.levels()
        self.balls = sizes.balls

    def forward(self, points: Tensor) -> Tensor:
        way = way_of(points, self, self._levels()) if self.fast else "plain"
        if way == "plain":
            return self._plain(points)
        geometry = self.geometry(points)
        features: Tensor | None = None
        for level, rows in zip(self._levels(), (geometry.level1, geometry.level2, geometry.level3), strict=True):
            features = (level.train_rows if way == "train" else level.infer_rows)(rows, features)
        assert features is not None
        return features

    def geometry(self, points: Tensor) -> Geometry:
        """The geometry that `forward` needs; models with the same sampling share it on the same batch."""
        return latest.of(points, self.balls, lambda: compact_geometry(points, *self.balls))

    def _plain(self, points: Tensor) -> Tensor:
        first, second = self.balls
        chosen = farthest_points(points, first.centres)
        centres1 = rows_at(points, chosen)
        features = self.level1(points, centres1, None)
        # Sampling from a fixed start is nested: the second sample is a prefix of the first.
        centres2 = centres1[:, : second.centres]
        features = self.level2(centres1, centres2, features)
        pooled: Tensor = self.level3(centres2, centres2, features).squeeze(1)
        return pooled

    def _levels(self) -> list[SetAbstraction]:
        return [self.level1, self.level2, self.level3]


# Settings with which the lite models train in a minute or two on a CPU; each can be overridden.
LITE: dict[str, Any] = {"training": {"rate": 2e-3, "batch": 16, "schedule": "cosine"}}


def _classifier(shape: tuple[int, ...], classes: int, sizes: PointNet2Sizes) -> Classifier:
    cloud_shape(shape)
    width = sizes.width
    head = mlp_head(16 * width, 8 * width, 4 * width, classes, sizes.dropout)
    return Classifier(PointNet2(sizes), head, 16 * width)


@wants_points(1024)
@models.register("pointnet2")
@sized(TEACHER)
def pointnet2(shape: tuple[int, ...], classes: int, sizes: PointNet2Sizes) -> Classifier:
    """PointNet++ for clouds of about a thousand points: the teacher.

    Level widths in units of `width`: 1-1-2, 2-2-4, 4-8-16; head 8-4. With 40 classes 1,475,688 parameters and 6,667
    elements of buffers, 5.655 MiB.
    """
    return _classifier(shape, classes, sizes)


@wants_points(1024)
@models.register("small-pointnet2")
@sized(STUDENT)
def small_pointnet2(shape: tuple[int, ...], classes: int, sizes: PointNet2Sizes) -> Classifier:
    """PointNet++ at a quarter of the size: the student. With 40 classes 374,344 + 3,339 elements, 1.441 MiB."""
    return _classifier(shape, classes, sizes)


@wants_points(1024, **LITE)
@models.register("pointnet2-lite")
@sized(LITE_TEACHER)
def pointnet2_lite(shape: tuple[int, ...], classes: int, sizes: PointNet2Sizes) -> Classifier:
    """The teacher PointNet++ with fewer centres, for training on a CPU."""
    return _classifier(shape, classes, sizes)


@wants_points(1024, **LITE)
@models.register("small-pointnet2-lite")
@sized(LITE_STUDENT)
def small_pointnet2_lite(shape: tuple[int, ...], classes: int, sizes: PointNet2Sizes) -> Classifier:
    """The student PointNet++ with fewer centres, for training on a CPU."""
    return _classifier(shape, classes, sizes)
