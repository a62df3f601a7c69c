"""3D boxes, and their convention.

A box is seven numbers, (..., 7): centre x y z, full sizes dx dy dz, heading. Axes are right-handed and z points up. The
heading rotates the box about the vertical through its centre, in radians, counter-clockwise seen from above: at 0 the
side dx is along x, at pi/2 along y. A heading of exactly 0 is an axis-aligned box. Sizes are never negative.

Data with another convention (half sizes, clockwise headings) is converted where it is read.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedstill.core.errors import InputError
from fedstill.detection.boxes.plane import sides_of, turn_by

NUMBERS = 7
CENTRE, SIZE, HEADING = slice(0, 3), slice(3, 6), 6
_PAIRS_AT_ONCE = 1 << 20  # of a point and a box


def check_boxes(boxes: Tensor, name: str) -> None:
    """Refuse invalid boxes: another shape, non-finite values, negative sizes."""
    if boxes.ndim != 2 or boxes.shape[1] != NUMBERS:
        shape = tuple(boxes.shape)
        raise InputError(f"{name} must be of shape (N, {NUMBERS}): centre, full sizes, heading; not {shape}")
    finite = boxes.isfinite().all(dim=1)
    if not finite.all():
        raise InputError(f"{name}: box {int((~finite).nonzero()[0])} has a value that is not finite")
    negative = (boxes[:, SIZE] < 0).any(dim=1)
    if negative.any():
        raise InputError(f"{name}: box {int(negative.nonzero()[0])} has a negative size")


def volumes(boxes: Tensor) -> Tensor:
    """(...)

    >>> volumes(torch.tensor([[9.0, 9, 9, 1, 2, 3, 0.4]])).tolist()
    [6.0]
    """
    return boxes[..., SIZE].prod(dim=-1)


def footprints(boxes: Tensor) -> Tensor:
    """The corners of each box seen from above, (..., 4, 2), counter-clockwise."""
    x, y = turn_by(sides_of(boxes), boxes[..., HEADING])
    return torch.stack([x + boxes[..., 0], y + boxes[..., 1]], dim=-1).movedim(0, -2)


def lies_in(points: Tensor, boxes: Tensor) -> Tensor:
    """Which points (scenes, points, 3) are inside which boxes (scenes, objects, 7): (scenes, points, objects).

    The surface belongs to the box.
    """
    away = points.unsqueeze(2) - boxes[:, None, :, CENTRE]
    x, y = turn_by((away[..., 0], away[..., 1]), -boxes[:, None, :, HEADING])
    half = boxes[:, None, :, SIZE] / 2
    return (x.abs() <= half[..., 0]) & (y.abs() <= half[..., 1]) & (away[..., 2].abs() <= half[..., 2])


def points_inside(points: Tensor, boxes: Tensor) -> Tensor:
    """How many of the points (points, 3) are inside each box (boxes, 7): (boxes,). The surface belongs to the box.

    >>> points = torch.tensor([[0.0, 0, 0], [0, 0, 1], [0, 0, 2]])
    >>> points_inside(points, torch.tensor([[0.0, 0, 0, 1, 1, 2, 0.3]])).tolist()
    [2]
    """
    at_once = max(_PAIRS_AT_ONCE // max(len(points), 1), 1)
    counts = [lies_in(points[None], some[None])[0].sum(dim=0) for some in boxes.split(at_once)]
    return torch.cat(counts) if counts else torch.zeros(0, dtype=torch.int64)


def aligned_hulls(boxes: Tensor) -> Tensor:
    """The smallest axis-aligned box around each box, (..., 7)."""
    corners = footprints(boxes)
    low, high = corners.amin(dim=-2), corners.amax(dim=-2)
    upright = [boxes[..., 2:3], high - low, boxes[..., 5:6], torch.zeros_like(boxes[..., HEADING:])]
    return torch.cat([(low + high) / 2, *upright], dim=-1)
