"""ShapeNet-part as `shapenetcore_partanno_segmentation_benchmark_v0_normal`: a text file per shape.

synsetoffset2category.txt: lines of a kind's name and its folder, as in "Airplane 02691156"
train_test_split/shuffled_{train,val,test}_file_list.json: lists of "shape_data/02691156/1a04e3ea"
02691156/1a04e3ea.txt: lines of x, y, z, a normal, and the number of the point's part

Part numbers are unique over all kinds. Parts have no names, so they are named after their kind: "Airplane 0".
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedstill.core.errors import InputError
from fedstill.core.streams import Streams
from fedstill.data.clouds import normalise
from fedstill.data.readers.cache import Slot
from fedstill.data.readers.points import sound
from fedstill.data.readers.raw import POINTS, FileFindings, refuse_empty

VERSION = 1
KINDS = "synsetoffset2category.txt"
LISTS = {"train": "train", "validation": "val", "test": "test"}
_COLUMNS = 7
_SOME = 3  # number of missing shapes that are listed by name

Clouds = NDArray[np.float32]
Numbers = NDArray[np.int64]
Names = tuple[str, ...]


class Parts(NamedTuple):
    """One split: clouds, the part of every point, the kind of every shape, and the files."""

    clouds: Clouds
    labels: Numbers
    kinds: Numbers
    names: tuple[str, ...]


def read(folder: Path, found: FileFindings, points: int = POINTS) -> tuple[dict[str, Parts], Names, Names]:
    """Normalised splits, the names of the parts, and those of the kinds.

    Parts are renumbered if a download lacks some of them.
    """
    home = next((place for place in (folder, *sorted(folder.glob("*/"))) if (place / KINDS).is_file()), None)
    if home is None:
        raise InputError(f"{folder} holds no {KINDS}, with which ShapeNet-part begins")
    kinds = _kinds(home / KINDS)
    listed = {split: _listed(home, short, kinds, found) for split, short in LISTS.items()}
    every = [path for paths in listed.values() for path in paths]
    clouds, labels, rows = _shapes(home, every, points, found)
    numbers = {name: number for number, name in enumerate(kinds)}
    kind = np.array([numbers[every[row].parent.name] for row in rows], np.int64)
    labels, classes = _named(labels, kind, tuple(kinds.values()))
    splits: dict[str, Parts] = {}
    start = 0
    for split, paths in listed.items():
        here = [at for at, row in enumerate(rows) if start <= row < start + len(paths)]
        if here:
            names = tuple(str(every[rows[at]]) for at in here)
            splits[split] = Parts(clouds[here], labels[here], kind[here], names)
        start += len(paths)
    return splits, classes, tuple(kinds.values())


def _kinds(path: Path) -> dict[str, str]:
    """From folders to the names of kinds, in the file's order."""
    lines = [line.split() for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    if not lines or any(len(words) != 2 for words in lines):
        raise InputError(f"{path} should hold lines of a kind's name and its folder, as in 'Airplane 02691156'")
    return {place: name for name, place in lines}


def _listed(home: Path, short: str, kinds: dict[str, str], found: FileFindings) -> list[Path]:
    """The files of a split; missing files, or files of an unknown kind, are faults."""
    listing = home / "train_test_split" / f"shuffled_{short}_file_list.json"
    if not listing.is_file():
        if short != "val":
            found.faults.append(f"{listing} does not exist")
        return []
    try:
        entries = json.loads(listing.read_text(encoding="utf-8"))
        names = [tuple(str(entry).split("/")[-2:]) for entry in entries]
        places = [home / place / f"{shape}.txt" for place, shape in names]
    except (ValueError, TypeError, RecursionError):
        found.faults.append(f"{listing} should be a list of names like 'shape_data/02691156/1a04e3ea'")
        return []
    wrong = [path for path in places if path.parent.name not in kinds or not path.is_file()]
    if wrong:
        named = ", ".join(path.relative_to(home).as_posix() for path in wrong[:_SOME])
        more = f" and {len(wrong) - _SOME:,} more" if len(wrong) > _SOME else ""
        found.faults.append(f"{listing} names {len(wrong):,} shapes that do not exist: {named}{more}")
    gone = set(wrong)
    return [path for path in places if path not in gone]


def _shapes(home: Path, files: list[Path], points: int, found: FileFindings) -> tuple[Clouds, Numbers, list[int]]:
    """Clouds and labels of the readable files, from the cache if it contains all of them."""
    slot: Slot | None = None
    with found.collecting():
        slot = Slot.of(home, files, f"shapenet-part {VERSION}, {points} points")
    kept = _fetch(slot, (len(files), points)) if slot is not None else None
    if kept is not None:
        return *kept, list(range(len(files)))
    before = len(found.faults)
    shapes: dict[int, tuple[Clouds, Numbers]] = {}
    for row, path in enumerate(files):
        with found.collecting():
            shapes[row] = _shape(path, points)
    clouds, labels = np.empty((len(shapes), points, 3), np.float32), np.empty((len(shapes), points), np.int64)
    for row, (cloud, marks) in enumerate(shapes.values()):
        clouds[row], labels[row] = cloud, marks
    normalise(clouds)
    if slot is not None and shapes and len(found.faults) == before:
        slot.keep_arrays(clouds=clouds, labels=labels.astype(np.int32))
    return clouds, labels, list(shapes)


def _shape(path: Path, points: int) -> tuple[Clouds, Numbers]:
    """This many points of a shape in random order; smaller shapes repeat some points, so that all have one size."""
    refuse_empty(path)
    try:
        table = np.loadtxt(path, np.float64, ndmin=2)
    except ValueError as error:
        raise InputError(f"{path} is no table of numbers ({' '.join(str(error).split())})") from None
    if table.shape[1] != _COLUMNS:
        raise InputError(f"{path} has {table.shape[1]} columns, expected are x y z nx ny nz part")
    cloud, marks = sound(table[:, :3], path), table[:, 6]
    if not np.isfinite(marks).all() or (marks < 0).any() or (marks != np.floor(marks)).any():
        raise InputError(f"{path}: parts, in the last column, should be whole numbers from 0")
    generator = Streams(0).draw("shape", f"{path.parent.name}/{path.stem}")
    order = generator.permutation(len(cloud))[:points]
    if len(order) < points:
        order = np.concatenate([order, generator.integers(0, len(cloud), points - len(order))])
    return cloud[order], marks[order].astype(np.int64)


def _named(labels: Numbers, kind: Numbers, kinds: tuple[str, ...]) -> tuple[Numbers, tuple[str, ...]]:
    """Labels numbered from 0 without gaps, and a name for each: its kind, and its index among the kind's parts."""
    parts, numbered = np.unique(labels, return_inverse=True)
    numbered = numbered.reshape(labels.shape)
    owner = np.full(len(parts), -1)
    for number in np.unique(kind):
        own = np.unique(numbered[kind == number])
        if (taken := own[owner[own] >= 0]).size:
            both = f"{kinds[owner[taken[0]]]} and {kinds[number]}"
            raise InputError(f"part {parts[taken[0]]} is of two kinds of things, {both}: numbers should be unique")
        owner[own] = number
    names = [f"{kinds[number]} {int((owner[:at] == number).sum())}" for at, number in enumerate(owner)]
    return numbered.astype(np.int64), tuple(names)


def _fetch(slot: Slot, shape: tuple[int, int]) -> tuple[Clouds, Numbers] | None:
    arrays = slot.fetch_arrays("clouds", "labels")
    if arrays is None:
        return None
    clouds, labels = arrays
    whole = clouds.dtype == np.float32 and clouds.shape == (*shape, 3) and labels.shape == shape
    return (clouds, labels.astype(np.int64)) if whole else None
