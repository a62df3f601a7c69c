"""Columns of a table that give any number of classes for each row."""

from __future__ import annotations

from fedstill.core.errors import InputError
from fedstill.data.readers.class_labels import MISSING_LABELS
from fedstill.data.readers.text_table import TextTable

Targets = tuple[bool, ...]
_OPEN = MISSING_LABELS | {""}  # whether a sample has the class is not known
_YES, _NO = frozenset({"1", "1.0", "true", "yes"}), frozenset({"0", "0.0", "false", "no"})
_SEPARATORS = ("|", ";", ",")
_NONE = frozenset({"", "no finding", "none"})  # in place of names


def read_targets(
    table: TextTable, columns: tuple[str, ...], order: tuple[str, ...] = ()
) -> tuple[tuple[str, ...], list[Targets | None]]:
    """The classes, and which of them each row has; None for a row that leaves one open.

    One column lists names with | between them, or ; or , where no cell has the one before; of several columns, each is
    a class, with cells of 0 and 1.
    """
    if len(columns) == 1:
        return _listed(table, columns[0], order)
    named = tuple(table.named(column) for column in columns)
    if len(set(named)) < len(named):
        raise InputError(f"labels names a column of {table.path} twice: leave one out")
    rows: list[Targets | None] = []
    cells = [table.column(name) for name in named]
    for at, row in enumerate(zip(*cells, strict=True)):
        for name, cell in zip(named, row, strict=True):
            if cell.lower() not in _YES | _NO | _OPEN:
                raise InputError(
                    f"{table.path}: row {table.number(at)} has {cell!r} in {name}: write 0 or 1, or leave it empty"
                )
        known = not any(cell.lower() in _OPEN for cell in row)
        rows.append(tuple(cell.lower() in _YES for cell in row) if known else None)
    return named, rows


def _listed(table: TextTable, column: str, order: tuple[str, ...]) -> tuple[tuple[str, ...], list[Targets | None]]:
    lists = table.column(column)
    separator = next((one for one in _SEPARATORS if any(one in cell for cell in lists)), _SEPARATORS[0])
    cells = [
        {name for one in cell.split(separator) if (name := one.strip()) and name.lower() not in _NONE} for cell in lists
    ]
    known = sorted(set().union(*cells))
    if set(known) <= {"0", "1"}:
        raise InputError(
            f"{table.path} has 0 and 1 in {column}, which is one class: name all columns, labels=COLUMN,COLUMN, or set"
            f" label={column}"
        )
    if strange := [name for name in known if order and name not in order]:
        raise InputError(f"{table.path} has the label {strange[0]!r}, which is not among the classes given")
    classes = order or tuple(known)
    if len(classes) < 2:
        raise InputError(
            f"{table.path} has fewer than two classes in {column}: list names with | between them, or give the columns"
            " of 0 and 1, labels=COLUMN,COLUMN"
        )
    return classes, [tuple(name in held for name in classes) for held in cells]
