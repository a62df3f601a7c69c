"""The nearest rows of one set to each row of another: in space for interpolation, in feature space for graphs."""

from __future__ import annotations

import torch
from torch import Tensor

_AT_ONCE = 1 << 24  # distances held in memory at a time


@torch.no_grad()
def nearest(queries: Tensor, points: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Distances and indices (batch, queries, count) of the points nearest to each query, the nearest first.

    Distances are taken from differences, not from inner products, so that a row is at distance exactly zero of
    itself and of its copies, however large its channels are; ties go to the lowest index. Where there are fewer
    points than asked for, all of them are given.

    >>> line = torch.tensor([[[0.0], [2.0], [1.0], [2.0]]])
    >>> nearest(line, line, 2)[1].tolist()
    [[[0, 2], [1, 3], [2, 0], [1, 3]]]
    """
    queries, points = queries.detach(), points.detach()
    count = min(count, points.shape[1])
    clouds = max(1, _AT_ONCE // (queries.shape[1] * points.shape[1]))
    found = [_nearest(q, p, count) for q, p in zip(queries.split(clouds), points.split(clouds), strict=True)]
    return torch.cat([distance for distance, _ in found]), torch.cat([index for _, index in found])


def _nearest(queries: Tensor, points: Tensor, count: int) -> tuple[Tensor, Tensor]:
    distances = torch.cdist(queries, points, compute_mode="donot_use_mm_for_euclid_dist")
    if distances.dtype != torch.float32:
        nearby, index = distances.sort(dim=2, stable=True)
        return nearby[..., :count], index[..., :count]
    # The bits of floats that are not negative are ordered as their values are: with the index below them, no two
    # keys are equal, so a partial sort has one answer only, and costs a tenth of a stable one.
    keys = distances.view(torch.int32).to(torch.int64) << 32
    keys |= torch.arange(points.shape[1], device=points.device)
    index = keys.topk(count, dim=2, largest=False).values & 0xFFFFFFFF
    return distances.gather(2, index), index
