"""ScanNet and SUN RGB-D in the layout of "Deep Hough Voting for 3D Object Detection in Point Clouds" (VoteNet).

ScanNet: `<scan>_vert.npy` (points, 3 or more) and `<scan>_bbox.npy` (boxes, 7): centre, full sizes, nyu40 id.
SUN RGB-D: `%06d_pc.npz` with `pc` (points, 3 or more) and `%06d_bbox.npy` (boxes, 8): centroid, **half** sizes,
heading, class. Its heading turns from +x towards -y, clockwise seen from above, so it changes sign here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedstill.core.errors import InputError
from fedstill.data.clouds import FEWEST_POINTS
from fedstill.data.readers.npz import lone_array
from fedstill.data.readers.raw import FileFindings
from fedstill.detection.cloud_files import CloudFile, as_numbers, read_points
from fedstill.detection.scenes import Scene, Scenes, check, stack_files

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

POINTS = 20_000  # to which smaller scans are filled up
SCANS, PICTURES = "_vert.npy", "_pc.npz"  # suffixes of cloud files: whole scans of ScanNet, depth images of SUN RGB-D

SCANNET = {  # nyu40 ids of the 18 classes, in their order
    3: "cabinet",
    4: "bed",
    5: "chair",
    6: "sofa",
    7: "table",
    8: "door",
    9: "window",
    10: "bookshelf",
    11: "picture",
    12: "counter",
    14: "desk",
    16: "curtain",
    24: "refrigerator",
    28: "shower curtain",
    33: "toilet",
    34: "sink",
    36: "bathtub",
    39: "garbage bin",
}
_NYU40 = 40
SUNRGBD = (
    *("bed", "table", "sofa", "chair", "toilet"),
    *("desk", "dresser", "night stand", "bookshelf", "bathtub"),
)


def read_scannet(
    folder: Path,
    points: int | None = None,
    seed: int = 0,
    names: Sequence[str] | None = None,
    found: FileFindings | None = None,
) -> Scenes:
    """The scans of a folder, or the named ones, as scenes of this many points; axis-aligned boxes of 18 classes.

    Without a number they have as many points as the largest, and at least 20,000.

    Boxes of other nyu40 classes, such as walls, are left out. Problems with a scan are added to `found`, if given, and
    the scan is left out.
    """
    classes = {number: row for row, number in enumerate(SCANNET)}

    def boxes(table: Floats, path: Path, notes: list[str]) -> tuple[Floats, Ints]:
        numbers = _whole(table[:, 6], path)
        strange = (numbers < 0) | (numbers > _NYU40)
        if strange.any():
            raise InputError(f"{path} has a box of class {numbers[strange][0]}: nyu40 ids are 0 to {_NYU40}")
        known = np.isin(numbers, list(classes))
        if not known.all():
            notes.append(f"{path.name}: {_boxes(int((~known).sum()))} of other classes left out")
        labels = np.array([classes[number] for number in numbers[known].tolist()], np.int64)
        return np.column_stack([table[known, :6], np.zeros(known.sum())]), labels

    return _read(folder, SCANS, 7, tuple(SCANNET.values()), boxes, points, seed, names, found)


def read_sunrgbd(
    folder: Path,
    points: int | None = None,
    seed: int = 0,
    names: Sequence[str] | None = None,
    found: FileFindings | None = None,
) -> Scenes:
    """The scenes of a folder, or the named ones, with this many points; oriented boxes of 10 classes, full sizes."""

    def boxes(table: Floats, path: Path, notes: list[str]) -> tuple[Floats, Ints]:
        heading = (np.pi - table[:, 6]) % (2 * np.pi) - np.pi
        return np.column_stack([table[:, :3], 2 * table[:, 3:6], heading]), _whole(table[:, 7], path)

    return _read(folder, PICTURES, 8, SUNRGBD, boxes, points, seed, names, found)


def _read(
    folder: Path,
    ending: str,
    columns: int,
    classes: tuple[str, ...],
    convert: Callable[[Floats, Path, list[str]], tuple[Floats, Ints]],
    points: int | None,
    seed: int,
    names: Sequence[str] | None,
    found: FileFindings | None,
) -> Scenes:
    if points is not None and points < FEWEST_POINTS:
        raise InputError(f"a scene needs at least {FEWEST_POINTS} points, not {points}")
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder: expected is one with files *{ending} and *_bbox.npy")
    every = sorted(path.name.removesuffix(ending) for path in folder.glob(f"*{ending}"))
    if not every:
        raise InputError(f"{folder} holds no files *{ending}")
    missing = sorted(set(names or ()) - set(every))
    if missing:
        raise InputError(f"{folder} holds no {missing[0]}{ending} (and {len(missing) - 1:,} more are missing)")
    notes: list[str] = []
    scenes: list[Scene] = []
    filled = points or POINTS
    for name in every if names is None else names:
        with nullcontext() if found is None else found.collecting():
            cloud, table = folder / f"{name}{ending}", folder / f"{name}_bbox.npy"
            boxes, labels = convert(_table(table, columns), table, notes)
            flat = (boxes[:, 3:6] == 0).any(axis=1)
            if flat.any():
                notes.append(f"{table.name}: {_boxes(int(flat.sum()))} without extent left out")
            held, note = read_points(cloud)
            notes += [note] if note else []
            scene = Scene(held, boxes[~flat], labels[~flat], str(cloud), labelled=str(table), name=name)
            check(scene, classes)
            file = CloudFile.of(cloud, name, held, 0 if len(held) >= filled else filled, seed)
            scenes.append(replace(scene, points=held[:0], file=file))
    largest = max((scene.file.held for scene in scenes if scene.file is not None), default=0)
    return stack_files(scenes, classes, points or max(POINTS, largest), tuple(notes))


def _boxes(count: int) -> str:
    return f"{count} box" if count == 1 else f"{count} boxes"


def _table(path: Path, columns: int) -> Floats:
    table = as_numbers(lone_array(path), path)
    if table.size == 0:  # whatever shape a scene without boxes was written with
        return np.zeros((0, columns))
    if table.ndim != 2 or table.shape[1] != columns:
        raise InputError(f"{path}: boxes must be {columns} numbers each, not {table.shape}")
    if not np.isfinite(table).all():
        raise InputError(f"{path}: box {np.argmin(np.isfinite(table).all(axis=1))} has numbers that are not finite")
    return table


def _whole(numbers: Floats, path: Path) -> Ints:
    whole = np.rint(numbers)
    if (whole != numbers).any():
        raise InputError(f"{path} has a box of class {numbers[whole != numbers][0]:g}: classes are whole numbers")
    return whole.astype(np.int64)
