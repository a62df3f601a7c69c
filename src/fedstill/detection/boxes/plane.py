"""Vectors in the plane, with separate coordinates and corners first: a layout that is fast for many pairs."""

from __future__ import annotations

from torch import Tensor

# x and y of the same shape
Plane = tuple[Tensor, Tensor]

# The direction of each corner of a footprint from the centre: counter-clockwise, from the front left one.
SIDES = ((0.5, 0.5), (-0.5, 0.5), (-0.5, -0.5), (0.5, -0.5))


def turn_by(vectors: Plane, angle: Tensor) -> Plane:
    """The vector, rotated counter-clockwise."""
    x, y = vectors
    cosine, sine = angle.cos(), angle.sin()
    return cosine * x - sine * y, sine * x + cosine * y


def sides_of(boxes: Tensor) -> Plane:
    """The corners of each footprint relative to its centre, before rotation, (4, ...), counter-clockwise."""
    signs = boxes.new_tensor(SIDES).view(4, 2, *[1] * (boxes.ndim - 1))
    return signs[:, 0] * boxes[..., 3], signs[:, 1] * boxes[..., 4]


def across(start: Tensor, end: Tensor) -> Plane:
    """The vectors from the centres of some boxes to those of others."""
    return end[..., 0] - start[..., 0], end[..., 1] - start[..., 1]
