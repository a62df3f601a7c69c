"""Tables that assign classes to objects, as CSV, TSV, Parquet or JSON beside the objects.

A table has a header with a column for the object and one for its class, and optionally for its split, its site and the
group (the patient) that it belongs to:

    file,label,split,site,patient
    scans/0001.png,benign,train,Karlsruhe,P17

Columns are found by name, or named by the settings of the data. JSON is a list of such rows, or simply
{"mug_red": "mug", ...}.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from fedstill.core.errors import InputError
from fedstill.data.data_settings import DataSettings
from fedstill.data.readers.class_labels import alike, class_of_numbers, sorted_names, without_missing
from fedstill.data.readers.path_ends import PathEnds
from fedstill.data.readers.raw import PARTS, FileFindings, Part, content
from fedstill.data.readers.target_columns import Targets, read_targets
from fedstill.data.readers.text_table import SUFFIXES, TextTable, plain_name, read_header, read_text_table

_FILE = ("file", "filename", "filepath", "path", "image", "image_path", "image_id", "image_name", "image_index")
_OBJECT = ("name", "object", "object_id", "id", "uid", "model", *_FILE, "scan")
_CLASS = ("class", "category", "label", "keyword", "type", "target", "diagnosis")
SPLIT_COLUMNS = ("split", "part", "set")
SITE_COLUMNS = ("site", "hospital", "centre", "center", "institution")
_SOME = 3  # names in a message
SEVERAL = "several classes"  # the label of a row with targets
FOLDER = "folder"  # in place of a column of sites: the first folder of a file is its site


class UnreadableTableError(InputError):
    """A file that may be a table and cannot be read: nothing in it says that it is one."""


class TableRow(NamedTuple):
    """What a table says of one object; the label is empty if it has none."""

    label: str
    part: Part | None = None
    site: str = ""
    group: str = ""
    targets: Targets = ()  # which classes it has, where that is any number of them; the label then only says so


@dataclass(frozen=True)
class LabelTable:
    """Class, split, site and group of each object."""

    path: Path
    rows: Mapping[str, TableRow]
    names_files: bool = False  # whether each row is a file, so that a missing one is a fault
    like_groups: tuple[tuple[str, int], ...] = ()  # columns that look like patients, with the number of their values
    site_folders: bool = False  # whether the first folder of a file is its site
    classes: tuple[str, ...] = ()  # in the order that was asked for, or those of `targets`
    notes: tuple[str, ...] = ()  # about its cells, as are the doubts
    doubts: tuple[str, ...] = ()

    def match(self, places: Iterable[PurePosixPath]) -> dict[PurePosixPath, str]:
        """The row of each of these files that has one.

        A row names the file by any of its names, or a folder above it. Rows that then have no file are compared without
        case and suffix, and by the ends of paths, where that leaves no doubt: `C:\\scans\\1.PNG` is `1.png`.
        """
        found: dict[PurePosixPath, str] = {}
        left: list[PurePosixPath] = []
        for place in places:
            if (row := self._named(place) or self._above(place)) is not None:
                found[place] = row
            else:
                left.append(place)
        if left:
            used = set(found.values())
            tails = PathEnds(row for row in self.rows if row not in used)
            found |= {place: row for place in left if (row := tails.find(place)) is not None}
        return found

    def _named(self, place: PurePosixPath) -> str | None:
        names = (place.as_posix(), place.with_suffix("").as_posix(), place.name, place.stem)
        return next((name for name in names if name in self.rows), None)

    def _above(self, place: PurePosixPath) -> str | None:
        names = [folder.as_posix() for folder in place.parents] + [folder.name for folder in place.parents]
        return next((name for name in names if name in self.rows), None)

    def refuse_unless_unrelated(self, folder: Path, places: list[PurePosixPath]) -> None:
        """An error where the table names files and all of them are others: its folders are not the classes instead."""
        if self.names_files and places:
            raise InputError(
                f"{self.path} names none of the {len(places):,} files in {folder}: its first is"
                f" {next(iter(self.rows))}, and the first file is {places[0]}; write paths from {folder}, or take the"
                " table away"
            )

    def is_folder(self, row: str, place: PurePosixPath) -> bool:
        """Whether a row is for all files of a folder that contains this one."""
        return self._named(place) is None and self._above(place) == row

    def site(self, row: str, place: PurePosixPath) -> str:
        return place.parts[0] if self.site_folders and len(place.parts) > 1 else self.rows[row].site

    def sorted_classes(self, labels: set[str], found: FileFindings) -> tuple[str, ...]:
        """Classes in the order that was asked for; else sorted, as numbers if all are."""
        if self.classes:
            labels = labels - {SEVERAL}
            if strange := sorted(labels - set(self.classes)):
                found.faults.append(f"{self.path} has the label {strange[0]!r}, which is not among the classes given")
            return self.classes
        found.doubts += [f"{self.path} has {pair}" for pair in alike(labels)]
        return sorted_names(labels)

    def report(self, used: set[str], found: FileFindings) -> None:
        """Add missing objects, and columns that look like patients."""
        missing = [name for name in self.rows if name not in used]
        found.notes += self.notes
        found.doubts += self.doubts
        if missing and self.names_files and found.skip:
            found.files(*(f"{name} of {self.path} does not exist" for name in missing))
        elif missing:
            what = f"{len(missing):,} {'files' if self.names_files else 'objects'} of {self.path}"
            first = ", ".join(missing[:_SOME]) + (", ..." if len(missing) > _SOME else "")
            if self.names_files:
                found.files(f"{what} do not exist: {first}")
            else:
                found.notes.append(f"{what} have no file: {first}")
        for column, values in self.like_groups:
            found.doubts.append(
                f"{self.path} has {values:,} values of {column} for {len(self.rows):,} rows: samples of one"
                f" {column} may be in training and in testing; set group={column} to keep them together"
            )


def find_table(folder: Path, settings: DataSettings | None = None) -> LabelTable | None:
    """The table that the settings name, else the first file of the folder that is one; others are ignored.

    With settings that name columns, a folder without a table is an error.
    """
    settings = settings or DataSettings()
    if settings.table is not None:
        path = next((one for one in (folder / settings.table, Path(settings.table)) if one.is_file()), None)
        if path is None:
            raise InputError(f"{folder} holds no table {settings.table!r}: give its name, relative to that folder")
        return _required(path, settings)
    paths = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    candidates = [path for path in paths if path.suffix.lower() in (*SUFFIXES, ".json")]
    if (settings.label is not None or settings.labels) and len(candidates) == 1:
        return _required(candidates[0], settings)
    trouble: InputError | None = None
    tables: list[LabelTable] = []
    for path in candidates:
        if tables and (not tables[0].names_files or path.suffix.lower() == ".json"):
            continue  # what describes objects may come in several tables, of which the first is used
        try:
            if (table := _labels(path, settings)) and (table.names_files or not tables):
                tables.append(table)
        except InputError as error:
            if _is_meant(path, settings):
                raise
            trouble = trouble or error
    if tables:
        return tables[0] if len(tables) == 1 else _of_splits(folder, tables)
    if trouble is not None:
        raise UnreadableTableError(str(trouble))
    asked = [name for name in ("label", "labels", "file", "group", "split", "site") if getattr(settings, name)]
    if named := [name for name in asked if getattr(settings, name) != FOLDER]:
        given = getattr(settings, named[0])
        raise InputError(
            f"{folder} holds no table with the column {given if isinstance(given, str) else given[0]!r}: put one there"
            f" (.csv, .tsv or .parquet), or leave {named[0]} out"
        )
    return None


def _of_splits(folder: Path, tables: list[LabelTable]) -> LabelTable:
    """The tables train.csv and test.csv as one; any other two are an error."""
    names = ", ".join(table.path.name for table in tables)
    parts = [PARTS.get(table.path.stem.lower()) for table in tables]
    if (
        None in parts
        or len(set(parts)) < len(parts)
        or any(row.part for table in tables for row in table.rows.values())
    ):
        raise InputError(
            f"{folder} holds several tables of labels ({names}): name one, as in table={tables[-1].path.name}"
        )
    rows: dict[str, TableRow] = {}
    for table, part in zip(tables, parts, strict=True):
        for name, row in table.rows.items():
            if name in rows:
                raise InputError(f"{name} is in several of {names} in {folder}: leave one row of it")
            rows[name] = row._replace(part=part)
    counts: dict[str, int] = {}
    for table in tables:
        for column, values in table.like_groups:
            counts[column] = counts.get(column, 0) + values
    classes = tables[0].classes
    if any(table.classes != classes for table in tables):
        raise InputError(f"the tables {names} in {folder} have different classes: give them in one order, classes=A,B")
    notes, doubts = (
        tuple(dict.fromkeys(one for table in tables for one in getattr(table, kind))) for kind in ("notes", "doubts")
    )
    return replace(
        tables[0], path=folder / names, rows=rows, like_groups=tuple(counts.items()), notes=notes, doubts=doubts
    )


def _required(path: Path, settings: DataSettings) -> LabelTable:
    table = _labels(path, settings)
    if table is None:
        held = _table(path)
        for name in (settings.label, *settings.labels, settings.file):
            if name is not None:
                held.named(name)
        columns = ", ".join(held.columns)
        lacking = "label" if settings.label is None and not settings.labels else "file"
        raise InputError(
            f"{path} has the columns {columns}, and none is called {lacking}: name it, as in"
            f" folder:FOLDER,{lacking}=COLUMN"
        )
    return table


def _labels(path: Path, settings: DataSettings) -> LabelTable | None:
    """The table of a file, if it has the columns for one; columns that the settings name must be there."""
    if not _has_columns(path, settings):
        return None
    table = _table(path)
    if settings.label is not None and table.find((settings.label,)) is None and settings.table is None:
        return None
    if not table.rows:
        raise InputError(f"{path} has a header and no rows: give one for each file")
    subject = _column(table, settings.file, _OBJECT)
    classes, targets = read_targets(table, settings.labels, settings.classes) if settings.labels else ((), [])
    kind = table.named(settings.labels[0]) if targets else _column(table, settings.label, _CLASS)
    if subject is None or kind is None:
        return None
    part = _column(table, settings.split, SPLIT_COLUMNS)
    site = None if settings.site == FOLDER else _column(table, settings.site, SITE_COLUMNS)
    group = _column(table, settings.group, ())
    cells = {name: table.column(name) for name in (subject, kind, part, site, group) if name is not None}
    given_labels = cells[kind] if targets else without_missing(cells[kind], settings.classes)
    labels, notes = (given_labels, []) if targets else class_of_numbers(given_labels, settings.classes)
    doubts = [] if targets else _lists(path, kind, labels)
    checks_sites = site is not None and any(cells[site])
    checks_splits = part is not None and has_splits(part, cells[part], settings)
    rows: dict[str, TableRow] = {}
    for at, written in enumerate(cells[subject]):
        name = written.removeprefix("./")
        if not name:
            continue
        given = "" if part is None else cells[part][at].lower()
        if checks_splits and given not in PARTS and (given or settings.split is not None):
            raise InputError(f"{path}: {name} has the split {given!r}: write train, validation or test")
        where = "" if site is None else cells[site][at]
        who = "" if group is None else cells[group][at]
        label = labels[at]
        if targets:
            label = "" if targets[at] is None else SEVERAL
        row = TableRow(label, PARTS.get(given), where, who, targets[at] or () if targets else ())
        if rows.setdefault(name, row) != row:
            raise InputError(f"{path} has {name} twice, with different entries: leave one row of it")
        for column, filled in ((group, who or group is None), (site, where or not checks_sites)):
            if not filled:
                raise InputError(f"{path}: {name} has no {column}: fill it in, or leave the row out")
    like = [] if group is not None else [(one, len(set(table.column(one)))) for one in table.like_groups()]
    return LabelTable(
        path,
        rows,
        settings.file is not None or plain_name(subject) in map(plain_name, _FILE),
        tuple((one, values) for one, values in like if one not in (subject, kind, *settings.labels)),
        settings.site == FOLDER,
        classes or settings.classes,
        tuple(notes),
        tuple(doubts),
    )


def has_splits(column: str, cells: list[str], settings: DataSettings) -> bool:
    """Whether a column is one of splits: other things are called `part` or `set`, too."""
    return settings.split is not None or column.lower() == "split" or any(cell.lower() in PARTS for cell in cells)


def _lists(path: Path, column: str, labels: list[str]) -> list[str]:
    """A doubt where classes look like lists of classes."""
    known = set(labels)
    lists = [one for one in known if len(names := re.split(r"\s*[|;,]\s*", one)) > 1 and known.issuperset(names)]
    if not lists:
        return []
    return [
        f"{path} has the class {min(lists)!r} beside its parts: if a sample may have several classes, set"
        f" labels={column}"
    ]


def _has_columns(path: Path, settings: DataSettings) -> bool:
    """Whether the first line names what is needed: the rows of other tables are not even read."""
    if path.suffix.lower() not in (".csv", ".tsv"):
        return True
    header = read_header(path)
    label = settings.labels[0] if settings.labels else settings.label
    given = ((settings.file, _OBJECT), (label, _CLASS))
    return all(header.find(usual if name is None else (name,)) is not None for name, usual in given)


def _is_meant(path: Path, settings: DataSettings) -> bool:
    """Whether the header of a text file says that it is a table of labels."""
    try:
        return path.suffix.lower() in (".csv", ".tsv") and _has_columns(path, settings)
    except InputError:  # it is empty
        return False


def _column(table: TextTable, given: str | None, usual: tuple[str, ...]) -> str | None:
    return table.find(usual) if given is None else table.named(given)


def _table(path: Path) -> TextTable:
    if path.suffix.lower() != ".json":
        return read_text_table(path)
    try:
        held = json.loads(content(path).decode("utf-8-sig", errors="replace"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is no JSON ({error}): mend it, or take it away") from None
    if isinstance(held, dict) and all(isinstance(value, str) for value in held.values()):
        held = [{"name": name, "class": value} for name, value in held.items()]
    records = [row for row in held if isinstance(row, dict)] if isinstance(held, list) else []
    columns = tuple(map(str, records[0])) if records else ()
    rows = tuple(tuple(_cell(row.get(column)) for column in columns) for row in records)
    return TextTable(path, columns, rows)


def _cell(value: object) -> str:
    """The text of a value in JSON; 0 and false are values like any other."""
    return "" if value is None else str(value).strip()
