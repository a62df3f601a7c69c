"""Intersection over union of boxes and its generalised form, exact for axis-aligned and for rotated boxes.

    IoU  = intersection / union
    gIoU = IoU - (enclosing - union) / enclosing

(*Generalized Intersection over Union*, Rezatofighi et al., 2019, https://arxiv.org/abs/1902.09630.) The enclosing
volume of two boxes is the convex hull of both footprints times their common height range; if both headings are exactly
0, it is their common axis-aligned box, as is usual for such data. The hull is never larger. So a pair's gIoU is
discontinuous where a heading becomes exactly 0, but it depends only on the pair.

All of it is differentiable; the gradient of a heading is 0 in axis-aligned pairs. For zero volumes both are 0.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedstill.detection.boxes.box_geometry import CENTRE, HEADING, SIZE, volumes
from fedstill.detection.boxes.hull import hull_area
from fedstill.detection.boxes.overlap import footprint_overlap


def iou(first: Tensor, second: Tensor) -> Tensor:
    """Elementwise; boxes (..., 7) of shapes that broadcast.

    >>> box = torch.tensor([0.0, 0, 0, 2, 2, 2, 0])
    >>> iou(box, torch.tensor([1.0, 0, 0, 2, 2, 2, 0])).item()  # 4 of 8 + 8 - 4
    0.3333333432674408
    """
    shared = intersection(first, second)
    return _ratio(shared, volumes(first) + volumes(second) - shared)


def generalised_iou(first: Tensor, second: Tensor) -> Tensor:
    """Elementwise, in [-1, 1]; boxes (..., 7) of shapes that broadcast.

    >>> box = torch.tensor([0.0, 0, 0, 1, 1, 1, 0])
    >>> generalised_iou(box, torch.tensor([3.0, 0, 0, 1, 1, 1, 0])).item()  # 2 of the 4 enclosed are in neither
    -0.5
    """
    shared = intersection(first, second)
    union = volumes(first) + volumes(second) - shared
    around = enclosing(first, second)
    return _ratio(shared, union) - _ratio(around - union, around)


def pairwise_iou(first: Tensor, second: Tensor) -> Tensor:
    """The IoU of every box in (..., N, 7) with every one in (..., M, 7): (..., N, M)."""
    return iou(first[..., :, None, :], second[..., None, :, :])


def pairwise_generalised_iou(first: Tensor, second: Tensor) -> Tensor:
    """The gIoU of every box in (..., N, 7) with every one in (..., M, 7): (..., N, M)."""
    return generalised_iou(first[..., :, None, :], second[..., None, :, :])


def intersection(first: Tensor, second: Tensor) -> Tensor:
    """The intersection volume of boxes, elementwise."""
    half, apart = _reach(first, second)
    # From differences alone: identical boxes intersect in exactly their size.
    lengths = torch.minimum(half - apart, torch.minimum(first[..., SIZE], second[..., SIZE])).clamp(min=0)
    return _by_kind(first, second, lengths, footprint_overlap)


def enclosing(first: Tensor, second: Tensor) -> Tensor:
    """The enclosing volume of boxes, elementwise."""
    half, apart = _reach(first, second)
    spans = torch.maximum(half + apart, torch.maximum(first[..., SIZE], second[..., SIZE]))
    return _by_kind(first, second, spans, hull_area)


def _reach(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    return (first[..., SIZE] + second[..., SIZE]) / 2, (first[..., CENTRE] - second[..., CENTRE]).abs()


def _by_kind(first: Tensor, second: Tensor, lengths: Tensor, area: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Length times width times height for axis-aligned pairs, the footprints' area times height for all others."""
    aligned = (first[..., HEADING] == 0) & (second[..., HEADING] == 0)
    closed = lengths.prod(dim=-1)
    return closed if bool(aligned.all()) else torch.where(aligned, closed, area(first, second) * lengths[..., 2])


def _ratio(part: Tensor, whole: Tensor) -> Tensor:
    """The ratio; 0 if the denominator is 0, also in the gradient."""
    there = whole > 0
    return torch.where(there, part / torch.where(there, whole, 1.0), 0.0)
