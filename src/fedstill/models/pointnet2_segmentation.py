"""PointNet++ for segmentation: set abstraction down to one vector, then feature propagation back to all points.

"PointNet++: Deep Hierarchical Feature Learning on Point Sets in a Metric Space", https://arxiv.org/abs/1706.02413,
section 3.4 and the single-scale network for part segmentation of its supplement. The last propagation also receives the
points' coordinates. The model does not receive the category of a cloud (the paper appends it, one-hot, on
ShapeNet-part), so that the same model works for data without categories.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedstill.models.batchnorm import normalise
from fedstill.models.builders import models, sized
from fedstill.models.classifier import Classifier
from fedstill.models.cloud_parts import cloud_shape, wants_points
from fedstill.models.kernels import check_clouds, farthest_points, group, rows_at
from fedstill.models.kernels.neighbours import nearest
from fedstill.models.pointnet2_sizes import LITE_TEACHER, TEACHER, PointNet2Sizes

Builder = TypeVar("Builder", bound=Callable[..., Any])

NEIGHBOURS = 3  # number of points that a point's features are interpolated from
_TINY = 1e-8  # added to squared distances, so that a point that is its own neighbour causes no division by zero


def labels_points(**training: float) -> Callable[[Builder], Builder]:
    """Declare that a builder's models label every point, not a whole cloud, and their default training settings.

    Clouds are scaled and shifted as elsewhere, but without point dropout: a dropped point would not train its part.
    """

    def note(builder: Builder) -> Builder:
        builder.task = "segmentation"  # type: ignore[attr-defined]
        defaults = {"augmentation": {"name": "points", "dropout": 0.0}, "training": training}
        builder.defaults = defaults  # type: ignore[attr-defined]
        return builder

    return note


def interpolate(points: Tensor, known: Tensor, features: Tensor) -> Tensor:
    """Features (batch, points, channels) of points, interpolated from points with known features.

    The mean over the three nearest known points with weights 1/d^2 (equation 2 of the paper with p = 2, k = 3); if
    fewer are known, over all of them.

    >>> known, features = torch.tensor([[[0.0, 0, 0], [3, 0, 0]]]), torch.tensor([[[1.0], [6.0]]])
    >>> interpolate(torch.tensor([[[1.0, 0, 0], [3, 0, 0]]]), known, features).flatten().tolist()
    [2.0, 6.0]
    """
    distances, index = nearest(points, known, NEIGHBOURS)
    weights = 1 / (distances + _TINY)
    weights = weights / weights.sum(dim=2, keepdim=True)
    return (group(features, index) * weights.unsqueeze(3)).sum(dim=2)


class FeaturePropagation(nn.Module):
    """Interpolates coarse features to finer points, adds their own, then shared layers with BatchNorm and ReLU."""

    def __init__(self, channels: int, widths: tuple[int, ...]) -> None:
        super().__init__()
        ins = channels, *widths[:-1]
        self.linears = nn.ModuleList(nn.Linear(i, o) for i, o in zip(ins, widths, strict=True))
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for width in widths)

    def forward(self, points: Tensor, known: Tensor, own: Tensor, features: Tensor) -> Tensor:
        """`own` features of the points come first, then those interpolated from the known ones."""
        out = torch.cat([own, interpolate(points, known, features)], dim=2).flatten(0, 1)
        for linear, norm in zip(self.linears, self.norms, strict=True):
            assert isinstance(norm, nn.BatchNorm1d | nn.GroupNorm)
            out = normalise(norm, linear(out), points.shape[0]).relu()
        return out.reshape(*points.shape[:2], out.shape[1])


class PointNet2Points(nn.Module):
    """Three levels down and three up: 2 times the sizes' `width` channels for every point."""

    def __init__(self, sizes: PointNet2Sizes) -> None:
        super().__init__()
        w = sizes.width
        self.first, self.second = sizes.balls
        self.level1, self.level2, self.level3 = sizes.levels()
        self.up3 = FeaturePropagation(4 * w + 16 * w, (4 * w, 4 * w))
        self.up2 = FeaturePropagation(2 * w + 4 * w, (4 * w, 2 * w))
        self.up1 = FeaturePropagation(3 + 2 * w, (2 * w, 2 * w, 2 * w))

    def forward(self, points: Tensor) -> Tensor:
        check_clouds(points)
        chosen = farthest_points(points, self.first.centres)
        centres1 = rows_at(points, chosen)
        centres2 = centres1[:, : self.second.centres]  # sampling from a fixed start is nested
        features1 = self.level1(points, centres1, None)
        features2 = self.level2(centres1, centres2, features1)
        whole = self.level3(centres2, centres2, features2)
        features2 = self.up3(centres2, centres2[:, :1], features2, whole)
        features1 = self.up2(centres1, centres2, features1, features2)
        out: Tensor = self.up1(points, centres1, points, features1)
        return out


class PointLabeller(Classifier):
    """A classifier of points: (batch, points, classes) log-probabilities, (batch, points, feature_size) features."""

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        features: Tensor = self.extractor(inputs)
        logits: Tensor = self.head(features.flatten(0, 1))
        return F.log_softmax(logits.reshape(*features.shape[:2], logits.shape[1]), dim=2), features


def _labeller(shape: tuple[int, ...], classes: int, sizes: PointNet2Sizes) -> PointLabeller:
    cloud_shape(shape)
    features = 2 * sizes.width
    head = nn.Sequential(
        nn.Linear(features, features),
        nn.BatchNorm1d(features),
        nn.ReLU(),
        nn.Dropout(sizes.dropout),
        nn.Linear(features, classes),
    )
    return PointLabeller(PointNet2Points(sizes), head, features)


@labels_points()
@wants_points(2048)
@models.register("pointnet2-segmentation")
@sized(replace(TEACHER, dropout=0.5))
def pointnet2_segmentation(shape: tuple[int, ...], classes: int, sizes: PointNet2Sizes) -> PointLabeller:
    """PointNet++ with feature propagation: a label for every point of clouds of about two thousand points.

    Levels in units of `width`: down 1-1-2, 2-2-4, 4-8-16, up 4-4, 4-2, 2-2-2; head 2.
    """
    return _labeller(shape, classes, sizes)


# Small batches: every cloud has hundreds of labels, and the intended data sets have a hundred clouds.
@labels_points(batch=8, rate=3e-3)
@wants_points(256)
@models.register("pointnet2-segmentation-lite")
@sized(replace(LITE_TEACHER, dropout=0.5))
def pointnet2_segmentation_lite(shape: tuple[int, ...], classes: int, sizes: PointNet2Sizes) -> PointLabeller:
    """PointNet++ with feature propagation for clouds of a few hundred points on a CPU."""
    return _labeller(shape, classes, sizes)
