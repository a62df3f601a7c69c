"""Tables as text that fits a terminal."""

from __future__ import annotations

from io import StringIO
from shutil import get_terminal_size

from rich.console import Console
from rich.table import Table as Grid

from fedstill.core.table import Table


def terminal_grid(table: Table, title: str = "") -> Grid:
    """A table that folds long cells; its caption and note are left out."""
    drawn = Grid(title=title or None, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for column in table.columns:
        drawn.add_column(column.name, justify="right" if column.right else "left", overflow="fold")
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
        console.print(terminal_grid(table))
        if table.note:
            console.print(table.note)
    return "\n".join(line.rstrip() for line in drawn.get().splitlines())
