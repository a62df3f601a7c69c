"""Folders of shapes, one file each: clouds or meshes, with a folder per class, or a table of classes.

    chair/chair_0001.off                 a folder per class; deeper files belong to it as well
    chair/train/chair_0001.off           with splits below the classes, as ModelNet has them
    train/chair/chair_0001.off           or above them
    metadata.csv, Mug_Red/meshes/x.obj   or a table (see label_table.py), anywhere below

The same shape in two formats (x.ply beside x.obj) counts once.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

import numpy as np

from fedstill.core.errors import InputError
from fedstill.data.readers.label_table import LabelTable, find_table
from fedstill.data.readers.points import SHAPES, Cloud, is_table, read_shape
from fedstill.data.readers.raw import PARTS, FileFindings, Part, Raw, ReaderHints, Split, are_splits
from fedstill.data.readers.stack import stack
from fedstill.data.readers.text_table import SUFFIXES as TABLES

VERSION = 1
_ARRAYS = (".npy", ".npz")
_DOUBTFUL = (*_ARRAYS, ".txt")  # these may lie beside images, too: labels, licences, boxes
_ORDER: tuple[Part, ...] = ("train", "validation", "test", "whole")


@dataclass(frozen=True)
class _Shape:
    place: PurePosixPath  # relative to the home of the data set
    label: str
    part: Part
    thing: str  # files of one object are one sample
    site: str = ""
    group: str = ""


def present(folder: Path) -> bool:
    """Files that can only be shapes."""
    return any(path.suffix.lower() not in _DOUBTFUL for path in _walk(folder))


def perhaps(folder: Path) -> bool:
    """Files of ambiguous type that look like clouds in class folders, or beside a table of classes."""
    tables = any(path.suffix.lower() in TABLES for path in folder.iterdir())
    files = (path for path in _walk(folder) if path.parent != folder or tables)
    return any(path.suffix.lower() in _ARRAYS or is_table(path) for path in files)


def read(folder: Path, found: FileFindings, hints: ReaderHints) -> Raw:
    home = _home(folder)
    files = [path for path in _walk(home) if path.suffix.lower() != ".txt" or is_table(path)]
    _report_unread(home, files, found)
    table: LabelTable | None = None
    with found.collecting():
        if hints.settings.labels:
            raise InputError("labels is for images and tables of features, and these are shapes: give one label")
        table = find_table(home, hints.settings)
    shapes = _one_file_each(_labelled(home, files, table, found, hints), found, hints)
    shapes.sort(key=lambda shape: (_ORDER.index(shape.part), shape.place))
    labelled = {shape.label for shape in shapes}
    listed = table is not None and bool(hints.settings.reads_table)
    classes = table.sorted_classes(labelled, found) if table is not None and listed else tuple(sorted(labelled))
    shapes = [shape for shape in shapes if shape.label in classes]
    normals = hints.settings.normals
    made_by = f"shapes {VERSION}, {hints.points} points{', normals' if normals else ''}"
    every = [home / shape.place for shape in shapes]
    clouds, rows = stack(home, every, partial(_read, home=home, points=hints.points, normals=normals), made_by, found)
    raw = Raw({}, classes)
    labels = np.array([classes.index(shapes[row].label) for row in rows], dtype=np.int64)
    parts = np.array([_ORDER.index(shapes[row].part) for row in rows], dtype=np.int64)
    for number in np.unique(parts):
        start, end = np.searchsorted(parts, [number, number + 1])  # sorted, so that a split is a contiguous range
        names = tuple(str(every[row]) for row in rows[start:end])
        sites, groups = (tuple(getattr(shapes[row], key) for row in rows[start:end]) for key in ("site", "group"))
        raw.splits[_ORDER[number]] = Split(
            clouds[start:end],
            labels[start:end],
            str(home),
            names,
            sites if any(sites) else (),
            groups if any(groups) else (),
        )
    return raw


def _read(path: Path, home: Path, points: int, normals: bool) -> Cloud:
    return read_shape(path, points, path.relative_to(home).as_posix(), normals=normals)


def _walk(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "__MACOSX")))
        for name in sorted(names):
            if name.lower().endswith(SHAPES) and not name.startswith("."):
                yield Path(place, name)


def _report_unread(home: Path, files: list[Path], found: FileFindings) -> None:
    """Say which files are no shapes; a folder without any shape is a doubt, since its class is missing."""
    read, others = set(files), Counter[str]()
    tops = {path.relative_to(home).parts[0] for path in files}
    empty: dict[str, Counter[str]] = {}
    for place, folders, names in os.walk(home):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "__MACOSX")))
        for name in names:
            path = Path(place, name)
            if name.startswith(".") or path in read or path.parent == home:
                continue
            others[path.suffix.lower() or name] += 1
            if (top := path.relative_to(home).parts[0]) not in tops:
                empty.setdefault(top, Counter())[path.suffix.lower() or name] += 1
    if others:
        found.notes.append(f"{others.total():,} files of {home} are no shapes and are left out: {_listed(others)}")
    for top, held in sorted(empty.items()):
        found.doubts.append(
            f"the folder {top} holds no file that can be read ({_listed(held)}): its class is missing; convert its"
            f" files to {', '.join(SHAPES)}"
        )


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.most_common(5))


def _home(folder: Path) -> Path:
    """The data folder of an unpacked archive: descends while a folder has a single subfolder, but not into a class."""
    inside = [path for path in folder.iterdir() if not path.name.startswith((".", "__MACOSX"))]
    folders = [path for path in inside if path.is_dir()]
    shapes = [path for path in inside if path.suffix.lower() in (*SHAPES, ".csv", ".json") and path not in folders]
    if len(folders) == 1 and not [path for path in shapes if path.suffix.lower() != ".txt"]:
        below = folders[0]
        if sum(1 for path in below.iterdir() if path.is_dir()) > 1:
            return _home(below)
    return folder


def _labelled(
    home: Path, files: list[Path], table: LabelTable | None, found: FileFindings, hints: ReaderHints
) -> list[_Shape]:
    """Every file with its class and its split; files without a class are left out and reported."""
    places = [PurePosixPath(path.relative_to(home).as_posix()) for path in files]
    level = _split_level(places)
    matched = {} if table is None else table.match(places)
    if table is not None and not hints.settings.reads_table and not matched:
        table.refuse_unless_unrelated(home, places)
        table = None
    shapes: list[_Shape] = []
    nameless: list[PurePosixPath] = []
    rows: set[str] = set()
    for place in places:
        folders = [name for number, name in enumerate(place.parent.parts) if number != level]
        part: Part = "whole" if level is None else PARTS.get(place.parts[level].lower(), "whole")
        label, thing, site, group = "", place.with_suffix("").as_posix(), "", ""
        if table is not None:
            row = matched.get(place)
            if row is not None:
                label, listed, _, group, _ = table.rows[row]
                part, thing, site = listed or part, row, table.site(row, place)
                rows.add(row)
        elif hints.group is not None:
            first = folders[0] if folders else place.stem
            label = hints.group(first) or ""
            thing = first if hints.object_folders else thing
        elif folders:
            label = folders[0]
        if label and (level is None or part != "whole"):
            shapes.append(_Shape(place, label, part, thing, site, group))
        else:
            nameless.append(place)
    if table is not None:
        table.report(rows, found)
    if nameless:
        why = f"no class in {table.path.name}" if table is not None else "no class or no split by its folder"
        found.notes.append(
            f"{len(nameless):,} of {len(places):,} files have {why} and are left out: {nameless[0]}, ..."
        )
    if not shapes:
        found.faults.append(f"{home} has no shapes in class folders ({', '.join(SHAPES)})")
    if {shape.part for shape in shapes} > {"whole"}:  # a table that contains the split of some shapes only
        shapes = [shape for shape in shapes if shape.part != "whole"]
        found.notes.append(f"shapes without a split in {table.path.name if table else home} are left out")
    return shapes


def _split_level(places: list[PurePosixPath]) -> int | None:
    """The folder level of the names train and test: above the classes (0), below them (1), or none.

    A class may be called train, so both names must exist, and below classes nothing else.
    """
    above = {PARTS.get(place.parts[0].lower()) for place in places if len(place.parts) > 1}
    if are_splits(above):
        return 0
    below = {PARTS.get(place.parts[1].lower()) for place in places if len(place.parts) > 2}
    return 1 if are_splits(below) and None not in below else None


def _one_file_each(shapes: list[_Shape], found: FileFindings, hints: ReaderHints) -> list[_Shape]:
    """The preferred file of every object: by the data set's preference, else by format, else by name."""

    def rank(shape: _Shape) -> tuple[bool, int, str]:
        place = shape.place.as_posix()
        return (hints.prefer not in place, SHAPES.index(shape.place.suffix.lower()), place)

    best: dict[tuple[Part, str], _Shape] = {}
    for shape in sorted(shapes, key=rank):
        best.setdefault((shape.part, shape.thing), shape)
    if len(best) < len(shapes):
        found.notes.append(f"{len(shapes):,} files hold {len(best):,} shapes: one file of each is used")
    return list(best.values())
