"""Tables as text that fits a terminal."""

from __future__ import annotations

from io import StringIO
from shutil import get_terminal_size
from typing import Literal

from rich.console import Console
from rich.table import Table as Grid

from fedstill.core.table import Table

_LEAST = 16  # characters of a column of words


def terminal_grid(table: Table, title: str = "", width: int | None = None) -> Grid:
    """A table that folds long cells, of numbers only where words would have no room; caption and note are left out."""
    drawn = Grid(title=title or None, title_justify="left", box=None, pad_edge=False, header_style="bold")
    needed = sum(wide + 2 if column.right else _LEAST for column, wide in zip(table.columns, table.widths, strict=True))
    whole = width is not None and needed <= width
    for column in table.columns:
        justify: Literal["left", "right"] = "right" if column.right else "left"
        drawn.add_column(column.name, justify=justify, overflow="fold", no_wrap=whole and column.right)
    for row in table.rows:
        drawn.add_row(*row)
    return drawn


def terminal_text(table: Table, width: int | None = None) -> str:
    """The table as lines of at most `width` characters, or those of the terminal, with its note below it."""
    console = Console(
        file=StringIO(),
        width=width or get_terminal_size().columns,
        markup=False,
        highlight=False,
        emoji=False,
        color_system=None,
    )
    with console.capture() as drawn:
        console.print(terminal_grid(table, width=console.width))
        if table.note:
            console.print(table.note)
    return "\n".join(line.rstrip() for line in drawn.get().splitlines())
