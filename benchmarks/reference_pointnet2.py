"""A plain PyTorch PointNet++, written like most public code, as the baseline of the speed comparison.

Sampling is a Python loop over centres, balls are found by sorting all indices, neighbourhoods are materialised, and the
layers are 1x1 convolutions over (batch, channels, neighbours, centres). Weights can be copied from `fedstill.models`,
and the results are the same except for rounding.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def pairwise_squared(a: Tensor, b: Tensor) -> Tensor:
    """|a|^2 - 2ab + |b|^2 for every pair of rows."""
    products = torch.matmul(a, b.transpose(1, 2))
    return (a * a).sum(-1, keepdim=True) - 2 * products + (b * b).sum(-1).unsqueeze(1)


def pick(values: Tensor, index: Tensor) -> Tensor:
    """values[b, index[b, ...]] for each cloud b."""
    batch = torch.arange(len(values)).view(-1, *[1] * (index.dim() - 1)).expand_as(index)
    return values[batch, index]


def sample(points: Tensor, count: int) -> Tensor:
    """Farthest point sampling, starting at the first point, with one Python step per point."""
    batch, size, _ = points.shape
    chosen = torch.zeros(batch, count, dtype=torch.long)
    nearest = torch.full((batch, size), 1e10)
    last = torch.zeros(batch, dtype=torch.long)
    for number in range(count):
        chosen[:, number] = last
        centre = points[torch.arange(batch), last].unsqueeze(1)
        distance = ((points - centre) ** 2).sum(-1)
        closer = distance < nearest
        nearest[closer] = distance[closer]
        last = nearest.argmax(-1)
    return chosen


def balls(points: Tensor, centres: Tensor, radius: float, count: int) -> Tensor:
    """The first indices within a radius, found by sorting all indices."""
    size = points.shape[1]
    index = torch.arange(size).repeat(len(points), centres.shape[1], 1)
    index[pairwise_squared(centres, points) > radius**2] = size
    index = index.sort(dim=-1)[0][:, :, :count]
    first = index[:, :, :1].repeat(1, 1, count)
    missing = index == size
    index[missing] = first[missing]
    return index


class Level(nn.Module):
    def __init__(self, ball: tuple[int, float, int] | None, before: int, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.ball = ball
        self.convolutions, self.norms = nn.ModuleList(), nn.ModuleList()
        for width in widths:
            self.convolutions.append(nn.Conv2d(before, width, 1))
            self.norms.append(nn.BatchNorm2d(width))
            before = width

    def forward(self, points: Tensor, features: Tensor | None) -> tuple[Tensor, Tensor]:
        if self.ball is None:
            centres = points.mean(1, keepdim=True)
            groups = points.unsqueeze(1)
            index = None
        else:
            count, radius, neighbours = self.ball
            centres = pick(points, sample(points, count))
            index = balls(points, centres, radius, neighbours)
            groups = pick(points, index) - centres.unsqueeze(2)
        if features is not None:
            grouped = features.unsqueeze(1) if index is None else pick(features, index)
            groups = torch.cat([groups, grouped], dim=-1)
        x = groups.permute(0, 3, 2, 1).contiguous()
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = F.relu(norm(convolution(x)))
        return centres, x.max(2)[0].transpose(1, 2)


class Reference(nn.Module):
    """The classifier; `balls` are (centres, radius, neighbours) of two levels."""

    def __init__(self, balls: tuple[tuple[int, float, int], ...], width: int, classes: int, dropout: float) -> None:
        super().__init__()
        w = width
        self.levels = nn.ModuleList(
            [
                Level(balls[0], 3, (w, w, 2 * w)),
                Level(balls[1], 2 * w + 3, (2 * w, 2 * w, 4 * w)),
                Level(None, 4 * w + 3, (4 * w, 8 * w, 16 * w)),
            ]
        )
        self.linear1, self.norm1 = nn.Linear(16 * w, 8 * w), nn.BatchNorm1d(8 * w)
        self.linear2, self.norm2 = nn.Linear(8 * w, 4 * w), nn.BatchNorm1d(4 * w)
        self.linear3, self.dropout = nn.Linear(4 * w, classes), nn.Dropout(dropout)

    def forward(self, points: Tensor) -> tuple[Tensor, Tensor]:
        features: Tensor | None = None
        for level in self.levels:
            points, features = level(points, features)
        assert features is not None
        pooled = features.flatten(1)
        x = self.dropout(F.relu(self.norm1(self.linear1(pooled))))
        x = self.dropout(F.relu(self.norm2(self.linear2(x))))
        return F.log_softmax(self.linear3(x), -1), pooled

    def copy_from(self, model: nn.Module) -> None:
        """Copy the weights of our model; convolution weights have two more dimensions of size one."""
        ours = model.state_dict()
        pairs: list[tuple[str, nn.Module]] = []
        for number, level in enumerate(self.levels, 1):
            for place in (1, 2, 3):
                pairs.append((f"extractor.level{number}.linear{place}", level.convolutions[place - 1]))
                pairs.append((f"extractor.level{number}.norm{place}", level.norms[place - 1]))
        heads = (self.linear1, self.norm1, self.linear2, self.norm2, self.linear3)
        pairs += [(f"head.{place}", part) for place, part in zip((0, 1, 4, 5, 8), heads, strict=True)]
        for name, part in pairs:
            state = {key: ours[f"{name}.{key}"].reshape(value.shape) for key, value in part.state_dict().items()}
            part.load_state_dict(state)
