"""PointNeXt-S, the small model of a modernised PointNet++.

"PointNeXt: Revisiting PointNet++ with Improved Training and Scaling Strategies", https://arxiv.org/abs/2206.04670: an
embedding of the points, four levels that halve the points and double the channels, one level over what is left, and a
head. Coordinates relative to a centre are divided by the radius, and each level adds a linear map of the centre's own
features to the maximum over its neighbours. The small model has no further blocks. Sampling starts at the first point.

The embedding reads all numbers of a point, coordinates first; (points, 6) is for normals. The paper counts 1.4 million
parameters. With w = 32, c numbers per point and k classes, a linear map without bias behind which a BatchNorm stands:

    embedding  32c + 32
    levels     (3 + i) o/2 + o + (o/2) o + 2o + io + o   from i to o = 2i channels, i = 32, 64, 128, 256
    last       (3 + 512) 512 + 1,024 + 512 * 512 + 1,024
    head       512 * 512 + 1,024 + 512 * 256 + 512 + 256k + k
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedstill.models.batchnorm import normalise
from fedstill.models.builders import models
from fedstill.models.classifier import Classifier
from fedstill.models.cloud_parts import cloud_channels, wants_points
from fedstill.models.kernels import ball_query, farthest_points, group, rows_at

_LEVELS = 4
_RADIUS, _GROWTH, _NEIGHBOURS = 0.15, 1.5, 32


class ResidualAbstraction(nn.Module):
    """One level: two layers for every neighbour, the maximum, and the centre's own features added."""

    def __init__(self, channels: int, width: int, radius: float) -> None:
        super().__init__()
        self.radius = radius
        self.linear1 = nn.Linear(3 + channels, width // 2, bias=False)
        self.norm1 = nn.BatchNorm1d(width // 2)
        self.linear2 = nn.Linear(width // 2, width, bias=False)
        self.norm2 = nn.BatchNorm1d(width)
        self.shortcut = nn.Linear(channels, width)

    def forward(self, points: Tensor, features: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Centres and their features; `chosen` are the rows of the centres."""
        centres, own = rows_at(points, chosen), rows_at(features, chosen)
        index = ball_query(points, centres, self.radius, _NEIGHBOURS)
        offsets = (group(points, index) - centres.unsqueeze(2)) / self.radius
        rows = torch.cat([offsets, group(features, index)], dim=3)
        out = normalise(self.norm1, self.linear1(rows.flatten(0, 2)), points.shape[0]).relu()
        out = normalise(self.norm2, self.linear2(out), points.shape[0])
        pooled = out.reshape(*rows.shape[:3], out.shape[1]).amax(dim=2)
        return centres, (pooled + self.shortcut(own)).relu()


class PointNext(nn.Module):
    """Clouds to 16 times `width` numbers."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Linear(channels, width)
        self.levels = nn.ModuleList(
            ResidualAbstraction(width * 2**number, width * 2 ** (number + 1), _RADIUS * _GROWTH**number)
            for number in range(_LEVELS)
        )
        last = width * 2**_LEVELS
        self.linear1, self.norm1 = nn.Linear(3 + last, last, bias=False), nn.BatchNorm1d(last)
        self.linear2, self.norm2 = nn.Linear(last, last, bias=False), nn.BatchNorm1d(last)

    def forward(self, cloud: Tensor) -> Tensor:
        points, features = cloud[:, :, :3].contiguous(), self.embedding(cloud)
        samples = max(1, points.shape[1] // 2)
        order = farthest_points(points, samples)
        for level in self.levels:
            points, features = level(points, features, order)
            # Sampling from a fixed start is nested: the next centres are the first half of these.
            order = torch.arange(max(1, points.shape[1] // 2), device=points.device).expand(points.shape[0], -1)
        rows = torch.cat([points, features], dim=2)
        out = normalise(self.norm1, self.linear1(rows.flatten(0, 1)), points.shape[0]).relu()
        out = normalise(self.norm2, self.linear2(out), points.shape[0]).relu()
        return out.reshape(*rows.shape[:2], out.shape[1]).amax(dim=1)


@wants_points(1024)
@models.register("pointnext-s")
def pointnext_s(shape: tuple[int, ...], classes: int, *, width: int = 32, dropout: float = 0.5) -> Classifier:
    """PointNeXt-S, optionally with normals (1.4 M)."""
    _, channels = cloud_channels(shape)
    features = width * 2**_LEVELS
    head = nn.Sequential(
        nn.Linear(features, 512, bias=False),
        nn.BatchNorm1d(512),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(512, 256, bias=False),
        nn.BatchNorm1d(256),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(256, classes),
    )
    return Classifier(PointNext(channels, width), head, features)
