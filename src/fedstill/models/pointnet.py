"""PointNet without its transform networks: the small, fast baseline for point clouds.

"PointNet: Deep Learning on Point Sets for 3D Classification and Segmentation", https://arxiv.org/abs/1612.00593, in its
"vanilla" form (section 5.2): the same layers for every point, the maximum over the points, and a head. The transform
networks would add more parameters than all the rest and about two points of accuracy.
"""

from __future__ import annotations

from torch import Tensor, nn

from fedstill.models.batchnorm import normalise
from fedstill.models.builders import models
from fedstill.models.classifier import Classifier
from fedstill.models.cloud_parts import cloud_shape, mlp_head, wants_points
from fedstill.models.kernels import check_clouds
from fedstill.models.kernels.compact import whole_clouds
from fedstill.models.kernels.latest import latest
from fedstill.models.pointnet2_levels import SetAbstraction, way_of


class PointNet(SetAbstraction):
    """Three layers for every point, then the maximum of each channel: one level over the whole cloud.

    In single precision on a CPU it computes distinct points only, with the same parameters and the same results; set
    `fast` to False for plain torch (see `way_of`).
    """

    fast = True

    def __init__(self, first: int, second: int, third: int, momentum: float) -> None:
        super().__init__(None, 0, (first, second, third))
        for _, norm in self.layers():
            norm.momentum = momentum

    def forward(self, points: Tensor) -> Tensor:  # type: ignore[override]
        check_clouds(points)
        way = way_of(points, self, [self]) if self.fast else "plain"
        if way != "plain":
            rows = latest.of(points, "whole clouds", lambda: whole_clouds(points))
            return (self.train_rows if way == "train" else self.infer_rows)(rows, None)
        out = points.flatten(0, 1)
        out = normalise(self.norm1, self.linear1(out), points.shape[0]).relu()
        out = normalise(self.norm2, self.linear2(out), points.shape[0]).relu()
        out = normalise(self.norm3, self.linear3(out), points.shape[0])
        # The maximum first: ReLU is monotone, so it is the same function at a fraction of the work.
        return out.reshape(*points.shape[:2], out.shape[1]).amax(dim=1).relu()


def _classifier(
    shape: tuple[int, ...], classes: int, widths: tuple[int, int, int, int, int], momentum: float, dropout: float
) -> Classifier:
    cloud_shape(shape)
    first, second, third, hidden1, hidden2 = widths
    head = mlp_head(third, hidden1, hidden2, classes, dropout)
    for part in head:
        if isinstance(part, nn.BatchNorm1d):
            part.momentum = momentum
    return Classifier(PointNet(first, second, third, momentum), head, third)


@wants_points(1024)
@models.register("pointnet")
def pointnet(
    shape: tuple[int, ...], classes: int, *, width: int = 64, momentum: float = 0.1, dropout: float = 0.4
) -> Classifier:
    """PointNet without transform networks, widths 64-128-1024, head 512-256: a fast baseline.

    In units of `width`: 1-2-16 and 8-4. `momentum` is BatchNorm's.
    """
    widths = width, 2 * width, 16 * width, 8 * width, 4 * width
    return _classifier(shape, classes, widths, momentum, dropout)


@wants_points(256)
@models.register("pointnet-tiny")
def pointnet_tiny(
    shape: tuple[int, ...], classes: int, *, width: int = 32, momentum: float = 0.3, dropout: float = 0.0
) -> Classifier:
    """PointNet for tests and demonstrations, widths 32-64-128, head 64-32: trains in seconds.

    In units of `width`: 1-2-4 and 2-1. BatchNorm's momentum is high because training has few batches.
    """
    widths = width, 2 * width, 4 * width, 2 * width, width
    return _classifier(shape, classes, widths, momentum, dropout)


@wants_points(256)
@models.register("small-pointnet-tiny")
def small_pointnet_tiny(
    shape: tuple[int, ...], classes: int, *, width: int = 16, momentum: float = 0.3, dropout: float = 0.0
) -> Classifier:
    """A student for `pointnet-tiny`, widths 16-32-64, head 32-16."""
    widths = width, 2 * width, 4 * width, 2 * width, width
    return _classifier(shape, classes, widths, momentum, dropout)
