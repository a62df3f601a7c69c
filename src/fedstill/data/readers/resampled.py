"""ModelNet as `modelnet40_normal_resampled`: a text file per shape, and files that list the shapes of each split.

modelnet40_shape_names.txt, modelnet40_train.txt, modelnet40_test.txt (the same for modelnet10, in the same folder)
airplane/airplane_0001.txt: lines of x, y, z and a normal, in random order, so that the first are a fair sample
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from fedstill.core.errors import InputError
from fedstill.data.readers.point_normals import with_table_normals
from fedstill.data.readers.points import Cloud, read_table, sound
from fedstill.data.readers.raw import FileFindings, Part, Raw, ReaderHints, Split
from fedstill.data.readers.stack import stack

VERSION = 1
_PARTS: tuple[Part, ...] = ("train", "test")
_SOME = 3  # number of missing shapes that are listed by name


def present(folder: Path) -> bool:
    return _home(folder) is not None


def read(folder: Path, found: FileFindings, hints: ReaderHints) -> Raw:
    home = _home(folder) or folder
    prefix = _prefix(home, found, hints)
    names = {part: _listed(home / f"{prefix}_{part}.txt", home, found) for part in _PARTS}
    classes = _classes(home / f"{prefix}_shape_names.txt", [name for listed in names.values() for name in listed])
    files = {part: [_file(home, name) for name in listed] for part, listed in names.items()}
    every = [path for part in _PARTS for path in files[part]]
    normals = hints.settings.normals
    made_by = f"modelnet text {VERSION}, {hints.points} points, {prefix}{', normals' if normals else ''}"
    clouds, rows = stack(home, every, partial(_first_rows, most=hints.points, normals=normals), made_by, found)
    labels = np.array([classes.index(_class(every[row].stem)) for row in rows], dtype=np.int64)
    border = sum(1 for row in rows if row < len(files["train"]))
    raw = Raw({}, classes)
    for part, some in zip(_PARTS, (slice(None, border), slice(border, None)), strict=True):
        labelled = tuple(str(every[row]) for row in rows[some])
        raw.splits[part] = Split(clouds[some], labels[some], f"{prefix}_{part}.txt in {home}", labelled)
    return raw


def _first_rows(path: Path, most: int, normals: bool) -> Cloud:
    table = read_table(path, most, normals=normals)
    return sound(with_table_normals(table, path) if normals else table, path)


def _home(folder: Path) -> Path | None:
    return next((place for place in (folder, *sorted(folder.glob("*/"))) if _prefixes(place)), None)


def _prefixes(folder: Path) -> list[str]:
    found = (path.name.removesuffix("_train.txt") for path in folder.glob("*_train.txt"))
    return sorted(prefix for prefix in found if (folder / f"{prefix}_test.txt").is_file())


def _prefix(home: Path, found: FileFindings, hints: ReaderHints) -> str:
    """The pair of split files to read; without a name, the last one, which is all of ModelNet40."""
    prefixes = _prefixes(home)
    if hints.name in prefixes:
        return hints.name
    if len(prefixes) > 1:
        found.notes.append(f"{home} has split files for {', '.join(prefixes)}: those of {prefixes[-1]} are used")
    return prefixes[-1]


def _listed(listing: Path, home: Path, found: FileFindings) -> list[str]:
    """Names in a split file that have a shape file; missing ones are a fault."""
    names = listing.read_text(encoding="utf-8", errors="replace").split()
    if not names:
        found.faults.append(f"{listing} names no shapes")
    missing = [name for name in names if "/" in name or not _file(home, name).is_file()]
    if missing:
        named = ", ".join(f"{_class(name)}/{name}.txt" for name in missing[:_SOME])
        more = f" and {len(missing) - _SOME:,} more" if len(missing) > _SOME else ""
        found.faults.append(f"{listing} names {len(missing):,} shapes that do not exist: {named}{more}")
    gone = set(missing)
    return [name for name in names if name not in gone]


def _classes(listing: Path, names: list[str]) -> tuple[str, ...]:
    if listing.is_file():
        classes = tuple(listing.read_text(encoding="utf-8", errors="replace").split())
        if {_class(name) for name in names} <= set(classes):
            return classes
        strange = sorted({_class(name) for name in names} - set(classes))
        raise InputError(f"{listing} lacks the classes {', '.join(strange)} of the shapes in the split files")
    return tuple(sorted({_class(name) for name in names}))


def _class(shape: str) -> str:
    """The class in a shape's name.

    >>> _class("night_stand_0201")
    'night_stand'
    """
    return shape.rpartition("_")[0]


def _file(home: Path, name: str) -> Path:
    return home / _class(name) / f"{name}.txt"
