"""Tables, for terminals, pages and Markdown: each cell has a text to read and a value to sort and to save.

The terminal's form is in `terminal_table.py`, a notebook's in `notebook.py`, a page's in the report's templates,
Markdown's here.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from fedstill.core.numbers import share

Row = TypeVar("Row")


@dataclass(frozen=True)
class Cell:
    text: str
    value: str | float | None
    mark: str = ""  # a class of the style sheet, where a cell should stand out
    link: str = ""  # on a page: where it leads, relative to the page


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
    caption: str
    columns: tuple[Head, ...]
    cells: tuple[tuple[Cell, ...], ...]  # row by row
    id: str = ""  # on a page
    note: str = ""  # what to know when reading it

    @property
    def header(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @property
    def rows(self) -> tuple[tuple[str, ...], ...]:
        """What there is to read."""
        return tuple(tuple(cell.text for cell in row) for row in self.cells)

    @property
    def right(self) -> tuple[int, ...]:
        """The columns that are aligned to the right."""
        return tuple(number for number, column in enumerate(self.columns) if column.right)

    @property
    def labels(self) -> int:
        """How many columns at the left name the row."""
        return min(self.right, default=len(self.columns))

    @property
    def widths(self) -> tuple[int, ...]:
        """Characters of the longest cell of each column."""
        return tuple(max(map(len, column)) for column in zip(self.header, *self.rows, strict=True))

    @property
    def width(self) -> int:
        """Characters that it takes to show it without breaking a line, two blanks between columns."""
        return sum(wide + 2 for wide in self.widths) - 2

    def markdown(self) -> str:
        rule = " | ".join("---:" if column.right else "---" for column in self.columns)
        note = f"\n{self.note}\n" if self.note else ""
        return f"{self.caption}.\n\n{markdown_rows(self.header, self.rows, f'| {rule} |')}\n{note}"


def make_table(id: str, caption: str, columns: Sequence[Column[Row]], rows: Sequence[Row], note: str = "") -> Table:
    shown = [column for column in columns if column.always or any(_something(column.cell(row)) for row in rows)]
    heads = tuple(Head(column.name, column.key, column.right) for column in shown)
    return Table(caption, heads, tuple(tuple(column.cell(row) for column in shown) for row in rows), id, note)


def text_table(
    caption: str, header: Sequence[str], rows: Sequence[Sequence[str]], right: Container[int], note: str = ""
) -> Table:
    """A table of nothing but text."""
    heads = tuple(Head(name, name, number in right) for number, name in enumerate(header))
    return Table(caption, heads, tuple(tuple(map(text, row)) for row in rows), note=note)


def markdown_rows(header: Sequence[str], rows: Sequence[Sequence[str]], rule: str) -> str:
    """The lines of a table in Markdown; bars in its cells would end them.

    >>> print(markdown_rows(("name", "what"), [("a", "b|c")], "|---|---|"))
    | name | what |
    |---|---|
    | a | b\\|c |
    """
    cells = [[cell.replace("|", "\\|") for cell in line] for line in (header, *rows)]
    first, *others = (f"| {' | '.join(line)} |" for line in cells)
    return "\n".join([first, rule, *others])


def _something(cell: Cell) -> bool:
    return cell.value not in (None, 0, "")


def text(value: str) -> Cell:
    return Cell(value, value)


def whole(value: int) -> Cell:
    return Cell(f"{value:,}", value)


def percent(value: float | None) -> Cell:
    return Cell(share(value), value)
