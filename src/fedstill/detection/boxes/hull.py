"""The area of the convex hull of two rotated rectangles, with a gradient.

A corner is on the hull if there are directions in which no other corner is farther out. Within its own rectangle a
corner is farthest out for a quarter of all directions; each corner of the other rectangle restricts them to a
half-plane. What remains is one arc for each corner, computed for all corners at once. Corners with an arc, in the order
of their arcs, form the hull; its area follows from their coordinates. If rounding decides whether a corner is included,
it lies on an edge or on another corner, and the area is the same either way; coincident corners may be included twice.

Positions in a quarter are given by t in [0, 1], which represents the direction (1 - t, t): no angle has to be computed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedstill.detection.boxes.box_geometry import HEADING
from fedstill.detection.boxes.plane import Plane, across, sides_of, turn_by


def hull_area(first: Tensor, second: Tensor) -> Tensor:
    """The hull area of the footprints of boxes, elementwise; (..., 7) of shapes that broadcast."""
    # In the first box's frame: scenes far from the origin lose no precision.
    x, y = turn_by(across(first, second), -first[..., HEADING])
    turn = second[..., HEADING] - first[..., HEADING]
    two_x, two_y = turn_by(sides_of(second), turn)
    two = two_x + x, two_y + y
    one_x, one_y = sides_of(first)
    one = one_x.expand_as(two[0]), one_y.expand_as(two[1])
    with torch.no_grad():
        order = _around(one, two, turn)
    xs, ys = (torch.cat([mine, other]).gather(0, order) for mine, other in zip(one, two, strict=True))
    return (xs * ys.roll(-1, dims=0) - ys * xs.roll(-1, dims=0)).sum(dim=0) / 2


def _around(one: Plane, two: Plane, turn: Tensor) -> Tensor:
    """Which of the eight corners are on the hull, (8, ...), counter-clockwise; unused entries repeat the first."""
    x, y = one[0][:, None] - two[0][None], one[1][:, None] - two[1][None]
    low_one, high_one = _arcs((x, y))
    low_two, high_two = _arcs(turn_by((-x.transpose(0, 1), -y.transpose(0, 1)), -turn))
    mine, other = _middle(low_one, high_one), turn_by(_middle(low_two, high_two), turn)
    angles = torch.atan2(torch.cat([mine[1], other[1]]), torch.cat([mine[0], other[0]]))
    gone = torch.cat([high_one <= low_one, high_two <= low_two])
    keys, order = angles.masked_fill(gone, torch.inf).sort(dim=0)
    return torch.where(keys.isfinite(), order, order[:1])


def _arcs(ways: Plane) -> tuple[Tensor, Tensor]:
    """The range of t in which each corner of a rectangle is farthest out, (4, ...); empty if the second is not larger.

    `ways` (4, 4, ...) are the vectors to each corner (rows) from each of the other rectangle's, in the frame of the
    rectangle. A direction is left to the corner if its product with the vector is not negative: (1 - t) * begin + t *
    end >= 0, with the vector's components along the two ends of the corner's own quarter.
    """
    x, y = ways
    begin = torch.stack([x[0], y[1], -x[2], -y[3]])
    end = torch.stack([y[0], -x[1], -y[2], x[3]])
    return _lost(begin, end).amax(dim=1), 1 - _lost(end, begin).amax(dim=1)


def _lost(against: Tensor, along: Tensor) -> Tensor:
    """The part of the quarter that is excluded at the end that a vector points away from."""
    lost = (-against).clamp(min=0)
    return lost / (lost + along.clamp(min=0)).clamp(min=torch.finfo(lost.dtype).tiny)


def _middle(low: Tensor, high: Tensor) -> Plane:
    """The direction in the middle of each corner's arc, (4, ...), in the frame of its rectangle."""
    end = (low + high) / 2
    begin = 1 - end
    x = torch.stack([begin[0], -end[1], -begin[2], end[3]])
    y = torch.stack([end[0], begin[1], -end[2], -begin[3]])
    return x, y
