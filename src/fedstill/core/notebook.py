"""What notebooks show: small HTML that needs no script, follows light and dark, and has every text escaped."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from math import isfinite
from time import monotonic
from typing import Any

from markupsafe import Markup

from fedstill.core.numbers import duration
from fedstill.core.table import Table

_CELL = "padding:2px 10px 2px 0;border:0;vertical-align:top;text-align:"
_TABLE, _LINE = "border-collapse:collapse", "border-bottom:1px solid currentColor"
_QUIET = "opacity:.7"
_EVERY = 0.1  # seconds between updates of a bar


def panel(heading: str, facts: Mapping[str, str], *more: Markup) -> str:
    """A heading with facts below it, then parts that are HTML already.

    >>> panel("<b>", {"data": "a & b"})[:60]
    '<div style="margin:.4em 0"><strong>&lt;b&gt;</strong><table '
    """
    line = Markup('<tr><td style="{}left;{}">{}</td><td style="{}left">{}</td></tr>')
    rows = [line.format(_CELL, _QUIET, name, _CELL, value) for name, value in facts.items()]
    table = Markup('<table style="{}">{}</table>').format(_TABLE, Markup().join(rows)) if rows else ""
    inside = Markup().join((table, *more))
    return str(Markup('<div style="margin:.4em 0"><strong>{}</strong>{}</div>').format(heading, inside))


def html_table(table: Table) -> Markup:
    """A table with its note below it."""
    sides = ["right" if column.right else "left" for column in table.columns]
    head = _cells("th", table.header, sides)
    rows = [Markup("<tr>{}</tr>").format(_cells("td", row, sides)) for row in table.rows]
    line = "border-bottom:1px solid currentColor"
    made = Markup(
        '<table style="border-collapse:collapse"><thead style="{}"><tr>{}</tr></thead><tbody>{}</tbody></table>'
    )
    return made.format(line, head, Markup().join(rows)) + paragraph(table.note)


def _cells(tag: str, texts: Sequence[str], sides: Sequence[str]) -> Markup:
    pairs = zip(sides, texts, strict=True)
    cell = Markup("<{0} style='{1}{2}'>{3}</{0}>")
    return Markup().join(cell.format(tag, _CELL, side, text) for side, text in pairs)


def paragraph(text: str) -> Markup:
    """A line of text; nothing for an empty one."""
    return Markup('<div style="{}">{}</div>').format(_QUIET, text) if text else Markup()


def picture(png: str, width: int, title: str = "") -> Markup:
    """An image from the base64 text of a PNG file."""
    style = f"width:{width}px;margin:2px;image-rendering:pixelated"
    image = Markup('<img src="data:image/png;base64,{}" style="{}" title="{}" alt="{}">')
    return image.format(png, style, title, title)


def curve(values: Sequence[float | None], label: str) -> Markup:
    """A small curve whose height fits its values; one that is missing or not finite is a gap. Nothing without two.

    >>> str(curve([0.5, None, 0.75, 1.0], "a <b>"))[-63:]
    'points="157.3,18.0 236.0,2.0"/><title>a &lt;b&gt;</title></svg>'
    >>> curve([0.5, None], "")
    Markup('')
    """
    known = [value for value in values if value is not None and isfinite(value)]
    if len(known) < 2:
        return Markup()
    low, span = min(known), (max(known) - min(known)) or 1.0
    pieces: list[list[str]] = [[]]
    for number, value in enumerate(values):
        if value is None or not isfinite(value):
            pieces.append([])
        else:
            across = 236 * number / (len(values) - 1)
            pieces[-1].append(f"{across:.1f},{34 - 32 * (value - low) / span:.1f}")
    line = Markup('<polyline fill="none" stroke="currentColor" stroke-width="1.5" points="{}"/>')
    lines = Markup().join(line.format(" ".join(piece)) for piece in pieces if len(piece) > 1)
    drawn = Markup('<svg viewBox="0 0 240 36" width="240" height="36" role="img" style="{}">{}<title>{}</title></svg>')
    return drawn.format("display:block;margin:.2em 0", lines, label)


def in_notebook() -> bool:
    """Whether the program runs in a notebook's kernel; a terminal with IPython is none."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


class NotebookBar:
    """A progress bar in a notebook's output, with lines of text below it. It needs IPython and nothing else."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.done, self.total, self.text = 0.0, 0.0, ""
        self.lines: list[str] = []
        self.figure = Markup()  # below the bar
        self._handle: Any = None
        self._drawn = 0.0

    def show(self, done: float, total: float, text: str) -> None:
        """Draw the bar, unless it was drawn a moment ago and is not full."""
        self.done, self.total, self.text = done, total, text
        if done >= total or monotonic() - self._drawn >= _EVERY:
            self.draw()

    def add_line(self, text: str) -> None:
        self.lines.append(text)
        self.draw()

    def draw(self) -> None:
        self._drawn = monotonic()
        if self._handle is None:
            self._handle = import_module("IPython.display").display(self, display_id=True)
        else:
            self._handle.update(self)

    def __repr__(self) -> str:
        return "\n".join(filter(None, [f"{self.name} {self.text}".strip(), *self.lines]))

    def _repr_html_(self) -> str:
        lines = Markup().join(map(paragraph, self.lines))
        if not self.total:
            return str(lines)
        bar = Markup('<progress value="{}" max="{}" style="width:16em;vertical-align:middle"></progress>')
        drawn = bar.format(self.done, self.total)
        return str(Markup("<div>{} {} {}{}{}</div>").format(self.name, drawn, self.text, self.figure, lines))


def time_left(seconds: float, done: float, total: float) -> str:
    """The time so far, and an estimate of the rest from the work done in it.

    >>> time_left(10, 2, 5), time_left(10, 5, 5), time_left(0, 0, 5)
    ('10.0\\xa0s, about 15.0\\xa0s left', '10.0\\xa0s', '')
    """
    if not done:
        return ""
    rest = seconds / done * (total - done)
    return duration(seconds) + (f", about {duration(rest)} left" if done < total else "")
