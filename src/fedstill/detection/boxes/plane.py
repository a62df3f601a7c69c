"""Vectors in the plane, coordinates apart and corners in front: the layout in which many pairs are computed fast."""

from __future__ import annotations

from torch import Tensor

# x and y of the same shape
Plane = tuple[Tensor, Tensor]

# Which way each corner of a footprint lies from the centre: counter-clockwise, from the one ahead on the left.
SIDES = ((0.5, 0.5), (-0.5, 0.5), (-0.5, -0.5), (0.5, -0.5))


def turn_by(vectors: Plane, angle: Tensor) -> Plane:
    """Turned counter-clockwise."""
    x, y = vectors
    cosine, sine = angle.cos(), angle.sin()
    return cosine * x - sine * y, sine * x + cosine * y


def sides_of(boxes: Tensor) -> Plane:
    """The corners of each footprint from its centre, before it is turned, (4, ...), counter-clockwise."""
    signs = boxes.new_tensor(SIDES).view(4, 2, *[1] * (boxes.ndim - 1))
    return signs[:, 0] * boxes[..., 3], signs[:, 1] * boxes[..., 4]


def across(start: Tensor, end: Tensor) -> Plane:
    """The way from the centres of some boxes to those of others."""
    return end[..., 0] - start[..., 0], end[..., 1] - start[..., 1]
