"""Doubts of `fedstill data check` about scenes: units, coordinate systems, boxes that cannot be found."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from torch import Tensor

from fedstill.data.layout import Samples
from fedstill.data.readers.raw import FileFindings
from fedstill.detection.boxes import points_inside
from fedstill.detection.model.detector_sizes import LITE, PAPER, TURNED

FAR = 0.5  # metres around a box in which there is no point
LARGEST, SMALLEST = 100.0, 0.5  # metres: the plausible extent of a scene
_QUERIES = {"detr3d-lite": LITE.queries, "detr3d-turned": TURNED.queries, "detr3d": PAPER.queries}


def find_scene_doubts(splits: Mapping[str, Samples], found: FileFindings) -> None:
    """Reasons to distrust what is learned and measured on these scenes."""
    for part, split in splits.items():
        boxes = split.columns().get("boxes")
        if boxes is None:
            continue
        _find_units(part, split, found)
        _find_long(part, boxes[split.labels >= 0], found)
        _find_degrees(part, boxes[split.labels >= 0], found)
        _find_far(part, split, boxes, found)
        _find_many(part, split, found)
        empty = int((split.labels < 0).all(dim=1).sum())
        if empty:
            found.notes.append(f"{empty:,} of {len(split.labels):,} {part} scenes have no boxes")


def _find_units(part: str, split: Samples, found: FileFindings) -> None:
    extents = [float(across) for some in split.pieces() for across in (some.amax(dim=1) - some.amin(dim=1)).amax(dim=1)]
    largest, smallest = max(extents, default=SMALLEST), min(extents, default=SMALLEST)
    if largest > LARGEST:
        found.doubts.append(
            f"a {part} scene is {largest:,.0f} units across, and scenes must be in metres: divide millimetres by"
            " 1,000 and centimetres by 100, in points and in boxes"
        )
    if smallest < SMALLEST:
        found.doubts.append(
            f"{split.name(extents.index(smallest))} ({part}) is {smallest:.2g} units across, and scenes must be in"
            " metres: give scenes scaled to a unit size, or in kilometres, their true size, in points and in boxes"
        )


def _find_long(part: str, real: Tensor, found: FileFindings) -> None:
    """Boxes in another unit than the points: one of them around the origin contains all points, so it is not far."""
    largest = float(real[:, 3:6].max()) if len(real) else 0.0
    if largest > LARGEST:
        found.doubts.append(
            f"a {part} box is {largest:,.0f} units long, and boxes must be in metres, like points: divide millimetres"
            " by 1,000"
        )


def _find_degrees(part: str, real: Tensor, found: FileFindings) -> None:
    largest = float(real[:, 6].abs().max()) if len(real) else 0.0
    if largest > 2 * math.pi + 1e-3:
        found.doubts.append(
            f"{part} boxes have headings up to {largest:g}, and headings must be in radians: multiply degrees by pi/180"
        )


def _find_far(part: str, split: Samples, boxes: Tensor, found: FileFindings) -> None:
    """Boxes without a point inside or within half a metre: boxes and points disagree about where things are."""
    far = list(_lonely(split, boxes))
    if far:
        row, number = far[0]
        every = int((split.labels >= 0).sum())
        found.doubts.append(
            f"{len(far):,} of {every:,} {part} boxes have no point within {FAR} m, the first is box {number} of"
            f" {split.name(row)}: boxes and points must have one origin, one unit and z up"
        )


def _lonely(split: Samples, boxes: Tensor) -> Iterator[tuple[int, int]]:
    row = 0
    wider = boxes.new_tensor([0, 0, 0, 2 * FAR, 2 * FAR, 2 * FAR, 0])
    for some in split.pieces():
        for cloud in some:
            there = (split.labels[row] >= 0).nonzero().flatten()
            inside = points_inside(cloud, boxes[row, there] + wider)
            yield from ((row, int(number)) for number in there[inside == 0])
            row += 1


def _find_many(part: str, split: Samples, found: FileFindings) -> None:
    """More boxes than the default detector has queries: it cannot find all of them."""
    counts = (split.labels >= 0).sum(dim=1)
    most = int(counts.max()) if len(counts) else 0
    if most > _QUERIES["detr3d-lite"]:
        able = [f"{name} {queries}" for name, queries in _QUERIES.items() if queries >= most]
        found.doubts.append(
            f"{split.name(int(counts.argmax()))} ({part}) has {most} boxes, and detr3d-lite finds"
            f" {_QUERIES['detr3d-lite']} at most: "
            + (f"choose one that finds more ({', '.join(able)})" if able else "cut such scenes into smaller ones")
        )
