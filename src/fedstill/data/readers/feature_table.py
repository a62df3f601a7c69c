"""Tables of features: numbers and categories in columns, with a column of classes.

What is missing is filled in, and numbers are scaled, by statistics of the training rows. Without anything said they are
those of each site: a site of a deployment has no others, so a simulation gives the same numbers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedstill.core.errors import InputError
from fedstill.data.data_settings import DataSettings
from fedstill.data.feature_preparation import (
    COMMA,
    CategoryColumn,
    Floats,
    NumberColumn,
    Preparation,
    is_missing,
    number_column,
    parsed,
    rows_of_sites,
)
from fedstill.data.readers.class_labels import alike, class_of_numbers, sorted_names
from fedstill.data.readers.label_table import SITE_COLUMNS, SPLIT_COLUMNS, has_splits
from fedstill.data.readers.raw import PARTS, FileFindings, Part
from fedstill.data.readers.target_columns import Targets, read_targets
from fedstill.data.readers.text_table import SUFFIXES, TextTable, is_identifier, read_text_table

_LABELS = ("label", "target", "class", "diagnosis", "outcome")
_MOST_CATEGORIES = 50
_MOST_CLASSES = 100
_MOST_FRACTIONS = 10  # different numbers that are not whole, among labels
_FEW_VALUES = 20  # of a column that is tried as a copy of the classes
_REPEATED = 3  # rows with each of these values, at least and on average
_COPY = 0.999  # of the rows whose class one column gives
_STAND_INS = (-9.0, -99.0, -999.0, -9999.0, 99.0, 999.0, 9999.0)  # for missing numbers, in many a register
_DATE = re.compile(r"(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.](\d{4}|\d\d))([ T]\d{1,2}:.*)?")
_NUMBERED = 10  # rows from which a column that numbers them is no coincidence


@dataclass
class FeatureTable:
    """The columns of a table by their use; cells of features are still texts."""

    where: str
    labels: list[str]
    features: dict[str, list[str]]
    sites: list[str] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)  # of every row, where there is a column of splits
    targets: list[Targets] = field(default_factory=list)  # of every row, where it has any number of classes
    names: tuple[str, ...] = ()  # of these classes
    site_column: str = ""  # the one of sites, in a table that has it
    rows: list[str] = field(default_factory=list)  # the name of every row, as a spreadsheet counts

    def __len__(self) -> int:
        return len(self.labels)


def read_features(path: Path, settings: DataSettings, found: FileFindings, needs_labels: bool = True) -> FeatureTable:
    """One table, or a folder with one table per site; where no labels are needed, they are empty if there are none."""
    if path.is_file():
        return _used(read_text_table(path), settings, found, needs_labels)
    files = sorted(one for one in path.iterdir() if one.suffix.lower() in SUFFIXES and not one.name.startswith("."))
    if not files:
        raise InputError(f"{path} holds no table ({', '.join(SUFFIXES)}): name a file, or a folder with one per site")
    if settings.table is not None:
        chosen = path / settings.table
        if not chosen.is_file():
            raise InputError(f"{path} holds no table {settings.table!r}: it has {', '.join(one.name for one in files)}")
        return _used(read_text_table(chosen), settings, found, needs_labels)
    tables = {one: _used(read_text_table(one), settings, found, needs_labels) for one in files}
    return next(iter(tables.values())) if len(tables) == 1 else _joined(tables)


def _joined(tables: dict[Path, FeatureTable]) -> FeatureTable:
    """The tables of several sites as one; each is named by its file."""
    first_path, first = next(iter(tables.items()))
    for path, table in tables.items():
        for mine, other, where in ((first, table, path), (table, first, first_path)):
            if lacking := [name for name in mine.features if name not in other.features]:
                raise InputError(f"{where} lacks the column {lacking[0]!r}, which other sites have: add or drop it")
        if bool(table.parts) != bool(first.parts):
            raise InputError(f"{path} and {first_path} differ in having a column of splits: give one to all or none")
    names = sorted_names({name for table in tables.values() for name in table.names}) if first.names else ()
    if all(table.names == first.names for table in tables.values()):
        names = first.names
    return FeatureTable(
        ", ".join(str(path) for path in tables),
        [label for table in tables.values() for label in table.labels],
        {name: [cell for table in tables.values() for cell in table.features[name]] for name in first.features},
        [path.stem for path, table in tables.items() for _ in table.labels],
        [f"{path.stem}/{group}" for path, table in tables.items() for group in table.groups],
        [part for table in tables.values() for part in table.parts],
        [
            tuple(name in table.names and row[table.names.index(name)] for name in names)
            for table in tables.values()
            for row in table.targets
        ],
        names,
        rows=[name for table in tables.values() for name in table.rows],
    )


def _used(table: TextTable, settings: DataSettings, found: FileFindings, needs_labels: bool) -> FeatureTable:
    """The columns of a table by their use; rows without a class are left out, unless there is no column of classes."""
    names, targets = read_targets(table, settings.labels, settings.classes) if settings.labels else ((), [])
    label = table.find(_LABELS) if settings.label is None else table.named(settings.label)
    if settings.labels:
        label = table.named(settings.labels[0])
    if label is None and needs_labels:
        raise InputError(
            f"{table.path} has the columns {_few(table.columns)}, and none is called label: name it, as in"
            f" table:{table.path},label=COLUMN"
        )
    site, split, group = (
        (table.find(usual) if given is None else table.named(given))
        for given, usual in (
            (settings.site, SITE_COLUMNS),
            (settings.split, SPLIT_COLUMNS),
            (settings.group, ()),
        )
    )
    if split is not None and not has_splits(split, table.column(split), settings):
        split = None
    dropped = {table.named(name) for name in settings.drop}
    like_groups = [name for name in table.like_groups() if name != group and name not in dropped]
    for name in like_groups if group is None else ():
        found.doubts.append(
            f"{table.path.name} has fewer values of {name} than rows: rows of one {name} may be in training and in"
            f" testing; set group={name} to keep them together"
        )
    answers = {table.named(name) for name in settings.labels} | (set(names) & set(table.columns))
    apart = {label, site, split, group, *answers, *dropped, *like_groups}
    cells = {name: table.column(name) for name in table.columns}
    labels = [""] * len(table.rows) if label is None else cells[label]
    kept = [row for row, text in enumerate(labels) if label is None or not is_missing(text)]
    if targets:
        kept = [row for row, held in enumerate(targets) if held is not None]
    if len(kept) < len(table.rows):
        found.notes.append(f"{len(table.rows) - len(kept):,} rows of {table.path.name} have no {label}: left out")
    if not kept:
        raise InputError(f"{table.path} has no row with a {label or 'value'}: fill that column in")

    def some(name: str | None) -> list[str]:
        return [] if name is None else [cells[name][row] for row in kept]

    for named in (site, group):
        if named is not None and (empty := [row for row in kept if not cells[named][row]]):
            raise InputError(
                f"{table.path}: row {table.number(empty[0])} has no {named}: fill it in, or leave the row out"
            )
    features = {name: some(name) for name in table.columns if name not in apart}
    if not features:
        raise InputError(f"{table.path} has no column beside {label or site!r} that is a feature: add some")
    return FeatureTable(
        str(table.path),
        [labels[row] for row in kept],
        features,
        some(site),
        some(group),
        _parts(table, split, some(split)),
        [held for row in kept if targets and (held := targets[row]) is not None],
        names,
        site or "",
        [f"{table.path}, row {table.number(row)}" for row in kept],
    )


def _parts(table: TextTable, split: str | None, cells: Sequence[str]) -> list[Part]:
    if strange := [text for text in cells if text.lower() not in PARTS]:
        raise InputError(f"{table.path} has {strange[0]!r} in {split}: write train, validation or test")
    return [PARTS[text.lower()] for text in cells]


def class_names(table: FeatureTable, settings: DataSettings, found: FileFindings) -> tuple[str, ...]:
    """The classes in the order that was asked for, else sorted."""
    if table.names:
        return table.names
    table.labels, notes = class_of_numbers(table.labels, settings.classes)
    held = set(table.labels)
    found.notes += notes
    found.doubts += [f"{table.where} has {pair}" for pair in alike(held) if not settings.classes]
    if settings.classes:
        if strange := sorted(held - set(settings.classes)):
            raise InputError(f"{table.where} has the label {strange[0]!r}, which is not among the classes given")
        return settings.classes
    fractions = [label for label in sorted(held) if (numbers := parsed([label])) is not None and numbers[0] % 1]
    if len(fractions) > _MOST_FRACTIONS:
        raise InputError(
            f"{table.where} has {len(held):,} different numbers as labels, such as {fractions[0]}, which are"
            " measurements and no classes: give a column of classes, with label=COLUMN"
        )
    if len(held) > _MOST_CLASSES:
        raise InputError(
            f"{table.where} has {len(held):,} different labels: give a column of classes, with label=COLUMN"
        )
    return sorted_names(held)


def prepare(
    table: FeatureTable, train: NDArray[np.bool_], settings: DataSettings, found: FileFindings
) -> tuple[NDArray[np.float32], Preparation]:
    """The features of all rows as numbers: scaled, filled in, categories as columns of 0 and 1; and how.

    The training rows alone decide how.
    """
    for name in settings.categorical:
        if name not in table.features:
            raise InputError(f"{table.where} has no feature {name!r}, which categorical names: leave it out")
    names = tuple(sorted(set(table.sites)))
    sites = rows_of_sites(table.sites, names, table.where) if names else np.zeros(len(table), dtype=np.int64)
    columns: list[NumberColumn | CategoryColumn] = []
    missing: dict[str, int] = {}
    for name, cells in table.features.items():
        trained = [cell for cell, chosen in zip(cells, train, strict=True) if chosen]
        missing[name] = sum(map(is_missing, cells))
        if name in settings.categorical or parsed(trained) is None:
            if name not in settings.categorical:
                _doubt_texts(name, cells, found)
            columns.append(_categories(name, cells, train, table.where, found))
            continue
        column = number_column(
            name, cells, train, sites, impute=settings.impute, scale=settings.scale, indicators=settings.indicators
        )
        missing[name] = _doubt_numbers(column, cells, found)
        columns.append(column)
    if missing := {name: count for name, count in missing.items() if count}:
        rule = "0" if settings.impute == "zero" else f"the {settings.impute} of the training rows of its site"
        found.notes.append(f"{sum(missing.values()):,} missing values in {_few(missing)}: each becomes {rule}")
    trained_on = {name: [cells[row] for row in np.flatnonzero(train)] for name, cells in table.features.items()}
    if all(map(is_missing, (cell for cells in trained_on.values() for cell in cells))):
        raise InputError(f"{table.where} has no value in any feature of its training rows: fill some in")
    if same := [name for name, cells in trained_on.items() if len(set(cells)) == 1]:
        found.notes.append(f"all training rows have the same in {_few(same)}: nothing is learned from it")
    made = Preparation(tuple(columns), names, table.site_column)
    return made.read(table.features, sites), made


def _doubt_texts(name: str, cells: Sequence[str], found: FileFindings) -> None:
    """Report texts that are no categories: among numbers, or of a name of each row."""
    known = [cell for cell in cells if not is_missing(cell)]
    texts = [cell for cell in known if parsed([cell]) is None]
    if texts and all(COMMA.fullmatch(cell) for cell in texts):
        found.doubts.append(
            f"the column {name!r} has numbers with commas, the first {texts[0]!r}, and is taken for categories: write a"
            " decimal point, and no separator of thousands"
        )
    elif texts and all(_DATE.fullmatch(cell) for cell in texts):
        found.doubts.append(
            f"the column {name!r} has dates, the first {texts[0]}, and each is taken for a category of its own: give a"
            f" number in its place, such as days or years, or drop={name}"
        )
    elif 2 * len(texts) < len(known):
        found.doubts.append(
            f"the column {name!r} has {len(known) - len(texts):,} numbers and {len(texts):,} texts, the first"
            f" {texts[0]!r}, and is taken for categories: mend or empty these cells, or set categorical={name}"
        )
    elif len(set(known)) == len(known) >= _NUMBERED:
        found.doubts.append(f"the column {name!r} has another text in every row: if it names the rows, drop={name}")


def _doubt_numbers(column: NumberColumn, cells: Sequence[str], found: FileFindings) -> int:
    """Report what is no measurement, and give the number of values that are missing."""
    name, texts = column.name, column.texts(cells)
    if texts:
        found.doubts.append(
            f"the column {name!r} has {len(texts):,} texts in rows that are not trained on, the first"
            f" {cells[texts[0]]!r}, and numbers in all others: each text counts as missing"
        )
    numbers = column.numbers(cells)
    _doubt_measurements(name, numbers, found)
    return int(np.isnan(numbers).sum())


def _doubt_measurements(name: str, numbers: Floats, found: FileFindings) -> None:
    """Report numbers that are no measurements: of the rows, or in place of a missing value."""
    known = numbers[~np.isnan(numbers)]
    distinct = np.unique(known)
    if _NUMBERED <= len(known) == len(distinct):
        if (np.diff(distinct) == 1).all() or is_identifier(name) or name.lower() == "id":
            remedy = f"drop={name}" if name else "remove it from the file"
            found.doubts.append(f"the column {name!r} numbers the rows: if it is no measurement, {remedy}")
        return
    for value in distinct[[0, -1]] if len(distinct) > 2 else ():
        others = distinct[distinct != value]
        away = min(abs(value - others[0]), abs(value - others[-1]))
        if value in _STAND_INS and away > others[-1] - others[0] and (known == value).sum() > 1:
            found.doubts.append(
                f"the column {name!r} has {value:g} in {(known == value).sum():,} rows, far from all others: if it"
                " stands for a missing value, empty these cells"
            )


def find_copies(table: FeatureTable, found: FileFindings) -> None:
    """Report columns that give away the class, as a column that the label was made from does."""
    if table.targets:
        return
    labels = np.unique(np.array(table.labels), return_inverse=True)[1]
    majority = np.bincount(labels).max() / len(labels)
    for name, cells in table.features.items():
        values = np.unique(np.array(cells), return_inverse=True)[1]
        count = int(values.max()) + 1
        if not 1 < count <= min(_FEW_VALUES, len(labels) // _REPEATED):
            continue
        held = np.zeros((count, int(labels.max()) + 1))
        np.add.at(held, (values, labels), 1)
        if held.max(axis=1).sum() >= _COPY * len(labels) > majority * len(labels):
            found.doubts.append(
                f"the column {name!r} alone gives the class of every row: if it is made from it, drop={name}"
            )


def _categories(
    name: str, cells: Sequence[str], train: NDArray[np.bool_], where: str, found: FileFindings
) -> CategoryColumn:
    """The categories of the training rows."""
    chosen = {cell for cell, trained in zip(cells, train, strict=True) if trained and not is_missing(cell)}
    if len(chosen) > _MOST_CATEGORIES:
        raise InputError(
            f"{where}: the column {name!r} has {len(chosen):,} categories, more than {_MOST_CATEGORIES}: leave it out,"
            f" drop={name}"
        )
    column = CategoryColumn(name, sorted_names(chosen))
    if unknown := column.unknown(cells):
        found.notes.append(
            f"{len(unknown):,} values of {name} are in no training row, the first {unknown[0]!r}: each is taken for"
            " none of its categories"
        )
    return column


def _few(names: Sequence[str] | dict[str, int], most: int = 8) -> str:
    listed = list(names)
    return ", ".join(listed[:most]) + (", ..." if len(listed) > most else "")
