"""The intersection area of two rotated rectangles, exact and with a gradient.

Clipping one polygon by another usually requires an ordered list of corners. The area needs none. In the frame of the
second rectangle, |x| <= X and |y| <= Y, Green's theorem gives the area of the clipped first rectangle as an integral
along its own boundary:

    area = sum over its four edges of the integral of clamp(x, -X, X) dy over the part where |y| <= Y

because a row at height y contains clamp(right, -X, X) - clamp(left, -X, X) of it. Each edge is a straight line, so each
integral has three pieces in closed form. No decision depends on rounding: identical, touching and contained rectangles
need no tolerance.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedstill.detection.boxes.box_geometry import HEADING
from fedstill.detection.boxes.plane import Plane, across, sides_of, turn_by


def footprint_overlap(first: Tensor, second: Tensor) -> Tensor:
    """The intersection area of the footprints of boxes, elementwise; (..., 7) of shapes that broadcast."""
    centre = turn_by(across(second, first), -second[..., HEADING])
    turn = first[..., HEADING] - second[..., HEADING]
    # Measured from the first box's centre: a small box in a large one loses no precision.
    start = turn_by(sides_of(first), turn)
    along = tuple(part.roll(-1, dims=0) - part for part in start)
    width, depth = second[..., 3] / 2, second[..., 4] / 2
    enter, leave = _between(start[1], along[1], -depth - centre[1], depth - centre[1])
    here, way = start[0] + enter * along[0], (leave - enter) * along[0]
    rows = _mean_clamped(here, way, -width - centre[0], width - centre[0])
    area = (rows * (leave - enter) * along[1]).sum(dim=0).clamp(min=0)
    area = torch.minimum(area, torch.minimum(first[..., 3] * first[..., 4], second[..., 3] * second[..., 4]))
    # Boxes separated along an axis of the second give exactly 0 already; along one of the first, only up to rounding.
    return area.masked_fill(_apart(first, second, centre, turn), 0.0)


def _mean_clamped(here: Tensor, way: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """The mean of clamp(x, low, high) along a line from `here`, up to a constant that is equal for all edges.

    A constant cancels around a closed boundary; the subtracted one gives exactly 0 if everything lies on one side.
    """
    nearest = torch.zeros_like(low).clamp(min=low, max=high).detach()
    low, high, here = low - nearest, high - nearest, here - nearest
    with torch.no_grad():
        # clamp is continuous, so moving its breakpoints has no first-order effect: they need no gradient.
        bend, other = _between(here, way, low, high)
    middle = (other - bend) * (here + way * ((bend + other) / 2))
    before = bend * here.clamp(min=low, max=high)
    after = (1 - other) * (here + way).clamp(min=low, max=high)
    return before + middle + after


def _between(start: Tensor, along: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """The range of fractions in [0, 1] for which start + share * along lies between two bounds."""
    # Small enough to be negligible, large enough for the square of its inverse, which the gradient uses.
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
