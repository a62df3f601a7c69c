"""PointNet++ with multi-scale grouping.

"PointNet++: Deep Hierarchical Feature Learning on Point Sets in a Metric Space", https://arxiv.org/abs/1706.02413,
section 3.3 and the supplement: each of two levels groups the neighbours of a centre within three radii, encodes each
group by its own layers, and joins the results. As in `pointnet2`, sampling starts at the first point.

Points may have further numbers behind their coordinates, e.g. normals: (points, 6). With 40 classes the model has
1,747,368 parameters, and 1,747,848 with normals.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedstill.models.builders import models
from fedstill.models.classifier import Classifier
from fedstill.models.cloud_parts import cloud_channels, mlp_head, wants_points
from fedstill.models.kernels import farthest_points, rows_at
from fedstill.models.pointnet2_levels import Ball, SetAbstraction

Widths = tuple[int, int, int]
_FIRST: tuple[tuple[float, int, Widths], ...] = (
    (0.1, 16, (32, 32, 64)),
    (0.2, 32, (64, 64, 128)),
    (0.4, 128, (64, 96, 128)),
)
_SECOND: tuple[tuple[float, int, Widths], ...] = (
    (0.2, 32, (64, 64, 128)),
    (0.4, 64, (128, 128, 256)),
    (0.8, 128, (128, 128, 256)),
)
_LAST: Widths = (256, 512, 1024)


class MultiScale(nn.Module):
    """One level: the neighbours of each centre within several radii, each with layers of its own."""

    def __init__(self, centres: int, channels: int, scales: tuple[tuple[float, int, Widths], ...]) -> None:
        super().__init__()
        self.scales = nn.ModuleList(
            SetAbstraction(Ball(centres, radius, neighbours), channels, widths) for radius, neighbours, widths in scales
        )
        self.channels = sum(widths[2] for _, _, widths in scales)

    def forward(self, points: Tensor, centres: Tensor, features: Tensor | None) -> Tensor:
        return torch.cat([scale(points, centres, features) for scale in self.scales], dim=2)


class PointNet2Msg(nn.Module):
    """Two levels with three scales each and one over the whole cloud: a cloud becomes 1,024 numbers."""

    def __init__(self, extra: int, centres1: int, centres2: int) -> None:
        super().__init__()
        self.centres = centres1, centres2
        self.level1 = MultiScale(centres1, extra, _FIRST)
        self.level2 = MultiScale(centres2, self.level1.channels, _SECOND)
        self.level3 = SetAbstraction(None, self.level2.channels, _LAST)

    def forward(self, cloud: Tensor) -> Tensor:
        points = cloud[:, :, :3].contiguous()
        features = cloud[:, :, 3:].contiguous() if cloud.shape[2] > 3 else None
        first, second = self.centres
        centres1 = rows_at(points, farthest_points(points, first))
        features = self.level1(points, centres1, features)
        centres2 = centres1[:, :second]  # sampling from a fixed start is nested
        features = self.level2(centres1, centres2, features)
        pooled: Tensor = self.level3(centres2, centres2, features)
        return pooled.squeeze(1)


@wants_points(1024)
@models.register("pointnet2-msg")
def pointnet2_msg(
    shape: tuple[int, ...], classes: int, *, centres1: int = 512, centres2: int = 128, dropout: float = 0.4
) -> Classifier:
    """PointNet++ with multi-scale grouping, optionally with normals (1.7 M)."""
    _, channels = cloud_channels(shape)
    head = mlp_head(_LAST[2], 512, 256, classes, dropout)
    return Classifier(PointNet2Msg(channels - 3, centres1, centres2), head, _LAST[2])
