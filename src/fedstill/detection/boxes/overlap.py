"""The area that two turned rectangles share, exactly, and with a gradient.

Clipping one polygon by another usually makes a list of corners that must be kept in order. For the area none is needed.
Seen in the frame of the second rectangle, |x| <= X and |y| <= Y, Green's theorem gives the area of what is left of the
first as an integral along the first one's own boundary:

    area = sum over its four edges of the integral of clamp(x, -X, X) dy over the part where |y| <= Y

because a row at height y holds clamp(right, -X, X) - clamp(left, -X, X) of it. Each edge is a straight line, so each
integral has three pieces in closed form. There is nothing to decide that rounding could decide wrongly: identical,
touching and contained rectangles need no tolerance.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedstill.detection.boxes.box_geometry import HEADING
from fedstill.detection.boxes.plane import Plane, across, sides_of, turn_by


def footprint_overlap(first: Tensor, second: Tensor) -> Tensor:
    """The area that the footprints of boxes share, elementwise; (..., 7) of shapes that broadcast."""
    centre = turn_by(across(second, first), -second[..., HEADING])
    turn = first[..., HEADING] - second[..., HEADING]
    # Measured from the first one's centre: a small box loses no digits in a large one.
    start = turn_by(sides_of(first), turn)
    along = tuple(part.roll(-1, dims=0) - part for part in start)
    width, depth = second[..., 3] / 2, second[..., 4] / 2
    enter, leave = _between(start[1], along[1], -depth - centre[1], depth - centre[1])
    here, way = start[0] + enter * along[0], (leave - enter) * along[0]
    rows = _mean_clamped(here, way, -width - centre[0], width - centre[0])
    area = (rows * (leave - enter) * along[1]).sum(dim=0).clamp(min=0)
    area = torch.minimum(area, torch.minimum(first[..., 3] * first[..., 4], second[..., 3] * second[..., 4]))
    # What lies apart along an axis of the second is exactly 0 already; along one of the first, only up to rounding.
    return area.masked_fill(_apart(first, second, centre, turn), 0.0)


def _mean_clamped(here: Tensor, way: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """The mean of clamp(x, low, high) over a straight way from `here`, up to what is the same for all edges.

    A constant changes nothing around a closed boundary; the one taken off leaves exactly 0 where all of it lies to one
    side.
    """
    nearest = torch.zeros_like(low).clamp(min=low, max=high).detach()
    low, high, here = low - nearest, high - nearest, here - nearest
    with torch.no_grad():
        # clamp is continuous, so moving the places where it bends has no effect to first order: no gradient is needed.
        bend, other = _between(here, way, low, high)
    middle = (other - bend) * (here + way * ((bend + other) / 2))
    before = bend * here.clamp(min=low, max=high)
    after = (1 - other) * (here + way).clamp(min=low, max=high)
    return before + middle + after


def _between(start: Tensor, along: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Between which shares of the way, in [0, 1], start + share * along lies between two bounds."""
    # Small enough to be as good as nothing, large enough for the square of its inverse, which the gradient takes.
    tiny = torch.finfo(along.dtype).tiny ** (1 / 3)
    safe = torch.where(along.abs() < tiny, tiny, along)
    one, two = ((low - start) / safe).clamp(0, 1), ((high - start) / safe).clamp(0, 1)
    return torch.minimum(one, two), torch.maximum(one, two)


def _apart(first: Tensor, second: Tensor, centre: Plane, turn: Tensor) -> Tensor:
    """Whether an axis of the first footprint separates the two."""
    x, y = turn_by(centre, -turn)
    cosine, sine = turn.cos().abs(), turn.sin().abs()
    length = (first[..., 3] + second[..., 3] * cosine + second[..., 4] * sine) / 2
    width = (first[..., 4] + second[..., 3] * sine + second[..., 4] * cosine) / 2
    return (x.abs() >= length) | (y.abs() >= width)
