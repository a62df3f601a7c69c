"""Scenes: clouds of whole rooms with the boxes of the objects in them, generated or measured.

A box is seven numbers: its centre, its full sizes, and its heading. Axes are right-handed with z up, in metres. The
heading is the direction of the box's own x axis, in radians counter-clockwise about z seen from above; for objects with
a front, x points there. Axis-aligned boxes have heading 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedstill.core.dataset import NO_LABEL
from fedstill.core.errors import InputError
from fedstill.data.clouds import FEWEST_POINTS
from fedstill.detection.cloud_files import CloudFile, fits

Floats = NDArray[np.float64]
Numbers = TypeVar("Numbers", NDArray[np.float32], NDArray[np.float64])
NOBODY = NO_LABEL  # the class of padding rows of boxes, and the kind of unnamed rooms


@dataclass(frozen=True)
class Scenes:
    """Clouds of one size with their boxes, padded to the same number: rows of zeros, of class -1.

    A scene without boxes is valid: it contains no objects.
    """

    points: Tensor  # (scenes, points, 3) float32; of no scene where they stay in `files`
    boxes: Tensor  # (scenes, most boxes, 7) float32
    classes: Tensor  # (scenes, most boxes) int64
    kinds: Tensor  # (scenes,) int64: the type of each room, -1 where it is not known
    class_names: tuple[str, ...]
    kind_names: tuple[str, ...] = ()
    names: tuple[str, ...] = ()  # of the scenes
    notes: tuple[str, ...] = ()  # changes made to the files' contents while reading
    files: tuple[CloudFile, ...] = ()  # where clouds are read when they are needed
    sources: tuple[CloudFile, ...] = ()  # where the clouds are from, also if they are here

    def __len__(self) -> int:
        return len(self.classes)

    def boxes_of(self, row: int) -> tuple[Tensor, Tensor]:
        """The true boxes of one scene, and their classes."""
        there = self.classes[row] >= 0
        return self.boxes[row][there], self.classes[row][there]


def class_presence(classes: Tensor, count: int) -> Tensor:
    """Which of this many classes occur in each row; negative values are ignored.

    >>> class_presence(torch.tensor([[2, 2, -1], [-1, -1, -1]]), 3).tolist()
    [[False, False, True], [False, False, False]]
    """
    table = torch.zeros(len(classes), count + 1, dtype=torch.bool)
    table.scatter_(1, torch.where(classes < 0, count, classes), True)
    return table[:, :count]


@dataclass(frozen=True)
class Scene:
    """One scene before it is stacked with others; `where` names its file or its number in messages."""

    points: Floats  # (points, 3)
    boxes: Floats  # (boxes, 7)
    classes: NDArray[np.int64]
    where: str
    kind: int = NOBODY
    labelled: str = ""  # the file of the boxes, if it is another one
    name: str = ""  # for lists, if it is shorter
    file: CloudFile | None = None  # to read its points from again: then there are none here


def stack(
    scenes: Sequence[Scene],
    class_names: tuple[str, ...],
    kind_names: tuple[str, ...] = (),
    most: int = 1,
    notes: tuple[str, ...] = (),
) -> Scenes:
    """Scenes with equal numbers of points, each validated, padded to `most` boxes or as many as one of them has."""
    for scene in scenes:
        check(scene, class_names)
    points = len(scenes[0].points) if scenes else 0
    clouds = np.zeros((len(scenes), points, 3), np.float32)
    for row, scene in enumerate(scenes):
        if len(scene.points) != points:
            raise InputError(f"{scene.where} has {len(scene.points):,} points where others have {points:,}")
        clouds[row] = scene.points
    return _stacked(scenes, torch.from_numpy(clouds), class_names, kind_names, most, notes)


def stack_files(scenes: Sequence[Scene], class_names: tuple[str, ...], points: int, notes: tuple[str, ...]) -> Scenes:
    """Validated scenes whose points are read again from their files: now if all fit in memory, or batch by batch."""
    files = tuple(scene.file for scene in scenes if scene.file is not None)
    if not fits(len(files), points):
        made = _stacked(scenes, torch.zeros(0, points, 3), class_names, (), 1, notes)
        return replace(made, files=files, sources=files)
    clouds = np.zeros((len(files), points, 3), np.float32)
    for row, file in enumerate(files):
        clouds[row] = file.read(points)
    return replace(_stacked(scenes, torch.from_numpy(clouds), class_names, (), 1, notes), sources=files)


def _stacked(
    scenes: Sequence[Scene],
    clouds: Tensor,
    class_names: tuple[str, ...],
    kind_names: tuple[str, ...],
    most: int,
    notes: tuple[str, ...],
) -> Scenes:
    size = max([most, *(len(scene.boxes) for scene in scenes)])
    boxes = np.zeros((len(scenes), size, 7), np.float32)
    classes = np.full((len(scenes), size), NOBODY, np.int64)
    for row, scene in enumerate(scenes):
        boxes[row, : len(scene.boxes)] = scene.boxes
        classes[row, : len(scene.classes)] = scene.classes
    kinds = np.array([scene.kind for scene in scenes], np.int64)
    return Scenes(
        clouds,
        torch.from_numpy(boxes),
        torch.from_numpy(classes),
        torch.from_numpy(kinds),
        class_names,
        kind_names,
        tuple(scene.name or scene.where for scene in scenes),
        notes,
    )


def check(scene: Scene, class_names: Sequence[str]) -> None:
    """Refuse a scene that cannot be used for training, with a message that names it."""
    where = scene.where
    if scene.points.ndim != 2 or scene.points.shape[1] != 3:
        raise InputError(f"{where}: a cloud must be (points, 3), not {scene.points.shape}")
    if len(scene.points) < FEWEST_POINTS:
        raise InputError(f"{where} has {len(scene.points)} points: a scene needs at least {FEWEST_POINTS}")
    if not np.isfinite(scene.points).all():
        raise InputError(f"{where} has points that are not finite numbers")
    labelled = scene.labelled or where
    if scene.boxes.shape != (len(scene.classes), 7):
        raise InputError(f"{labelled}: {len(scene.classes)} boxes must be 7 numbers each, not {scene.boxes.shape}")
    if not np.isfinite(scene.boxes).all():
        raise InputError(
            f"{labelled}: box {_first(~np.isfinite(scene.boxes).all(axis=1))} has numbers that are not finite"
        )
    flat = (scene.boxes[:, 3:6] <= 0).any(axis=1)
    if flat.any():
        sizes = ", ".join(f"{size:g}" for size in scene.boxes[_first(flat)].tolist()[3:6])
        raise InputError(f"{labelled}: box {_first(flat)} has sizes {sizes}: all three must be above 0")
    unknown = (scene.classes < 0) | (scene.classes >= len(class_names))
    if unknown.any():
        raise InputError(
            f"{labelled}: box {_first(unknown)} is of class {scene.classes[_first(unknown)]}, "
            f"and classes are 0 to {len(class_names) - 1}"
        )


def _first(marks: NDArray[np.bool_] | np.bool_) -> int:
    return int(np.argmax(marks))


def corners(boxes: Floats) -> Floats:
    """The corners of boxes (boxes, 8, 3): counter-clockwise at the bottom, then the same at the top.

    >>> corners(np.array([[0, 0, 0, 2, 4, 6, np.pi / 2]]))[0, 0].round(6).tolist()
    [2.0, -1.0, -3.0]
    """
    signs = np.array([[x, y, z] for z in (-1, 1) for x, y in ((-1, -1), (1, -1), (1, 1), (-1, 1))])
    offsets = signs * boxes[:, None, 3:6] / 2
    cosine, sine = np.cos(boxes[:, None, 6]), np.sin(boxes[:, None, 6])
    x, y, z = np.moveaxis(offsets, 2, 0)
    return np.stack([cosine * x - sine * y, sine * x + cosine * y, z], axis=2) + boxes[:, None, :3]


def inside(points: Floats, boxes: Floats, margin: float = 0.0) -> NDArray[np.bool_]:
    """Which points are inside which boxes (points, boxes), each box enlarged by `margin` on every side."""
    offsets = points[:, None] - boxes[None, :, :3]
    cosine, sine = np.cos(boxes[:, 6]), np.sin(boxes[:, 6])
    x, y, z = np.moveaxis(offsets, 2, 0)
    own = np.stack([cosine * x + sine * y, cosine * y - sine * x, z], axis=2)
    within: NDArray[np.bool_] = (np.abs(own) <= boxes[:, 3:6] / 2 + margin).all(axis=2)
    return within
