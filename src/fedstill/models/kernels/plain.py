"""The four kernels in plain torch: used on other devices, and as the reference in tests of the compiled ones."""

from __future__ import annotations

import torch
from torch import Tensor


def squared_distances(points: Tensor, centres: Tensor) -> Tensor:
    """(batch, centres, points), by direct differences.

    |a|^2 + |b|^2 - 2ab would be a matrix product, but its rounding moves points in and out of balls.
    """
    difference = points.unsqueeze(1) - centres.unsqueeze(2)
    x, y, z = difference.unbind(-1)
    return x * x + y * y + z * z


def farthest_points(points: Tensor, samples: int) -> Tensor:
    """See `fedstill.models.kernels.farthest_points`."""
    batch, count, _ = points.shape
    chosen = torch.zeros(batch, samples, dtype=torch.int64, device=points.device)
    nearest = torch.full((batch, count), torch.inf, dtype=points.dtype, device=points.device)
    rows = torch.arange(batch, device=points.device)
    for number in range(1, samples):
        last = points[rows, chosen[:, number - 1]].unsqueeze(1)
        nearest = torch.minimum(nearest, squared_distances(points, last).squeeze(1))
        # argmax of equal values may return any of them: request the lowest index.
        farthest = nearest == nearest.amax(dim=1, keepdim=True)
        chosen[:, number] = farthest.to(torch.uint8).argmax(dim=1)
    return chosen


def ball_query(points: Tensor, centres: Tensor, limit: float, neighbours: int) -> Tensor:
    """See `fedstill.models.kernels.ball_query`; `limit` is the squared radius, rounded to the points' precision."""
    distances = squared_distances(points, centres)
    inside = distances <= limit
    count = points.shape[1]
    index = torch.arange(count, device=points.device).expand_as(inside)
    # Points outside get an index past the end, and sorting puts the lowest indices first.
    found = torch.where(inside, index, count).sort(dim=-1).values[..., :neighbours]
    first = torch.where(inside.any(-1, keepdim=True), found[..., :1], distances.argmin(dim=-1, keepdim=True))
    found = torch.where(found == count, first, found)
    return torch.cat([found, first.expand(*first.shape[:2], neighbours - found.shape[-1])], dim=-1)


def group(features: Tensor, index: Tensor) -> Tensor:
    """See `fedstill.models.kernels.group`."""
    batch, centres, neighbours = index.shape
    flat = index.reshape(batch, -1, 1).expand(-1, -1, features.shape[-1])
    return features.gather(1, flat).view(batch, centres, neighbours, features.shape[-1])


def ungroup(gradient: Tensor, index: Tensor, count: int) -> Tensor:
    """The gradient of `group`: the sum over all copies of a point."""
    batch, centres, neighbours, channels = gradient.shape
    flat = index.reshape(batch, -1, 1).expand(-1, -1, channels)
    total = gradient.new_zeros(batch, count, channels)
    return total.scatter_add_(1, flat, gradient.reshape(batch, centres * neighbours, channels))
