"""Tables: each cell has a text to read and a value to sort and to save."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from fedstill.core.numbers import share

Row = TypeVar("Row")


@dataclass(frozen=True)
class Cell:
    text: str
    value: str | float | None
    mark: str = ""  # a class of the style sheet, where a cell should stand out


@dataclass(frozen=True)
class Column(Generic[Row]):
    name: str  # what stands above it
    key: str  # what it is called in the CSV file
    cell: Callable[[Row], Cell]
    right: bool = True
    always: bool = True  # False: left out where no row has anything in it


@dataclass(frozen=True)
class Head:
    name: str
    key: str
    right: bool


@dataclass(frozen=True)
class Table:
    id: str
    caption: str
    columns: tuple[Head, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""  # what to know when reading it


def make_table(id: str, caption: str, columns: Sequence[Column[Row]], rows: Sequence[Row], note: str = "") -> Table:
    shown = [column for column in columns if column.always or any(_something(column.cell(row)) for row in rows)]
    heads = tuple(Head(column.name, column.key, column.right) for column in shown)
    return Table(id, caption, heads, tuple(tuple(column.cell(row) for column in shown) for row in rows), note)


def _something(cell: Cell) -> bool:
    return cell.value not in (None, 0, "")


def text(value: str) -> Cell:
    return Cell(value, value)


def whole(value: int) -> Cell:
    return Cell(f"{value:,}", value)


def percent(value: float | None) -> Cell:
    return Cell(share(value), value)
