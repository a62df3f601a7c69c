"""How things look in a terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from fedstill.core.table import Table, text_table
from fedstill.core.terminal_table import terminal_grid

# Names, paths and sentences are printed as they are: square brackets in them are no markup, `:x:` is no picture.
console = Console(markup=False, highlight=False, emoji=False)
errors = Console(stderr=True, markup=False, highlight=False, emoji=False)

CANNOT_RUN = "cannot run here"  # how a dry run begins to say why; its exit code is then 2
_BARS = "▁▂▃▄▅▆▇█"


def printable(text: object) -> str:
    """Text of another machine as one line in which nothing commands a terminal.

    >>> printable("round 1\\n\\x1b[2Jdone")
    'round 1  [2Jdone'
    """
    return "".join(letter if letter.isprintable() else " " for letter in str(text))


def print_json(content: Any) -> None:
    sys.stdout.write(json.dumps(content, ensure_ascii=False) + "\n")


def print_page(page: Path, as_json: bool) -> None:
    """Where a page is that was written."""
    if as_json:
        print_json({"page": str(page)})
    else:
        console.print(f"open {page.resolve()} in a browser", soft_wrap=True)


def table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: Sequence[int] = (),
    where: Console = console,
) -> None:
    """A plain table that fits the terminal; the columns in `right` are aligned to the right."""
    print_table(text_table(title, columns, rows, right), title, where)


def print_table(made: Table, title: str = "", where: Console = console) -> None:
    """The same for a table that is made already; its caption and note are left out."""
    where.print(terminal_grid(made, title, where.width))


def sparkline(values: Sequence[float], width: int = 60, low: float | None = None, high: float | None = None) -> str:
    """A curve in one line of text, from the lowest to the highest value, or between bounds that curves share.

    >>> sparkline([0.0, 0.5, 1.0]), sparkline([0.0, 0.5], high=1.0)
    ('▁▅█', '▁▅')
    """
    if not values:
        return ""
    if len(values) > width:
        values = [values[number * (len(values) - 1) // (width - 1)] for number in range(width)]
    low, high = min(values) if low is None else low, max(values) if high is None else high
    span = (high - low) or 1.0
    return "".join(_BARS[min(int((value - low) / span * len(_BARS)), len(_BARS) - 1)] for value in values)
