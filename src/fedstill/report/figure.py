"""A figure as data: what Plotly draws, what a key says, and the sentence for those who cannot see it.

Colours are names of the page's own (`var(--series-1)`), which the page fills in, so that a figure follows light, dark
and print without being made twice. `static.py` draws the same data to files.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from statistics import median
from typing import Any, Literal

from fedstill.report.extensions import turned_figures

FEW = 40  # up to here every point of a curve gets a dot; a curve of one point is nothing else
SERIES = 7  # colours the page has; after them they come again with another dash
DASHES = {"solid": "", "dash": "7 4", "dot": "2 3", "dashdot": "7 3 2 3"}
ALARM = "var(--alarm)"
QUIET = "var(--quiet)"
# Why a client was lost, each with its colour on every page.
CAUSES: dict[str, str] = {
    "dropped": "var(--dropped)",
    "battery": "var(--ink)",
    "refused": "var(--refused)",
    "failed": "var(--failed)",
    "abstained": "var(--abstained)",
}
# Plotly's names of markers, each with its outline for a key, in a square of 12.
SYMBOLS = {
    "circle": "M11 6A5 5 0 1 1 1 6A5 5 0 1 1 11 6Z",
    "square": "M1.5 1.5H10.5V10.5H1.5Z",
    "diamond": "M6 .5L11.5 6L6 11.5L.5 6Z",
    "triangle-up": "M6 1L11.5 11H.5Z",
    "triangle-down": "M6 11L11.5 1H.5Z",
    "cross": "M4 1H8V4H11V8H8V11H4V8H1V4H4Z",
    "pentagon": "M6 .5L11.5 4.6L9.4 11H2.6L.5 4.6Z",
    "x": "M1 3L3 1L6 4L9 1L11 3L8 6L11 9L9 11L6 8L3 11L1 9L4 6Z",
    "star": "M6 .5L7.5 4.4H11.6L8.3 7L9.5 11.2L6 8.7L2.5 11.2L3.7 7L.4 4.4H4.5Z",
    "hexagon": "M6 .5L11 3.2V8.8L6 11.5L1 8.8V3.2Z",
}

# Plotly's patterns of bars, in a box of 15 by 10 for a key.
HATCHES = {
    "/": "M2 10L8 0M7 10L13 0",
    "\\": "M2 0L8 10M7 0L13 10",
    "x": "M2 10L8 0M7 10L13 0M2 0L8 10M7 0L13 10",
    "-": "M1 3.3H14M1 6.7H14",
    "+": "M1 3.3H14M1 6.7H14M4.5 0V10M10.5 0V10",
    ".": "M3 5h.01M7.5 5h.01M12 5h.01M5 2.5h.01M10 2.5h.01M5 7.5h.01M10 7.5h.01",
}

Shape = Literal["line", "box", "cross", "hatched", "symbol", "open", "text"]


@dataclass(frozen=True)
class Key:
    """A line of a figure's key. With traces, it is a switch for them."""

    label: str
    colour: str
    traces: tuple[int, ...] = ()
    dash: str = ""  # of a line, as SVG writes it
    shape: Shape = "line"
    symbol: str = "circle"  # of a marker, filled (`symbol`) or not (`open`); the pattern (`hatched`); the sign (`text`)

    @property
    def outline(self) -> str:
        return (HATCHES if self.shape == "hatched" else SYMBOLS)[self.symbol]


@dataclass(frozen=True)
class Figure:
    id: str
    title: str
    sentence: str
    caption: str
    data: list[dict[str, Any]]
    layout: dict[str, Any]
    keys: list[Key] = field(default_factory=list)
    width: int = 0  # pixels below which it is moved sideways in its frame, rather than squeezed

    def spec(self) -> dict[str, Any]:
        """What the page's script is given."""
        return {"data": self.data, "layout": self.layout}

    @property
    def turns(self) -> str:
        """What it is if it is something to turn: drawn by the page itself, since a browser keeps few 3D contexts."""
        return next((trace["type"] for trace in self.data if trace["type"] in turned_figures), "")


def colour(number: int) -> str:
    return f"var(--series-{number % SERIES + 1})"


def cause_colour(cause: str) -> str:
    """That of a failure for causes of which only a newer journal knows."""
    return CAUSES.get(cause, CAUSES["failed"])


def dash(number: int) -> str:
    """Every line has its own dash too: colour alone tells nothing to some, and nothing on grey paper."""
    return list(DASHES)[number % len(DASHES)]


def symbol(number: int) -> str:
    return list(SYMBOLS)[number % len(SYMBOLS)]


def label(name: str) -> str:
    """A name where Plotly would read markup."""
    return escape(name, quote=False)


_FAR = 1000  # times the median: values that would press all others to the floor of a linear axis


def loss_axis(values: Sequence[float]) -> dict[str, Any]:
    """From zero; logarithmic where one run has diverged, so that the others can still be told apart.

    >>> loss_axis([2.0, 1.0, 0.5]), loss_axis([2.0, 1.0, 0.5, 1e9])["type"]
    ({'title': {'text': 'training loss'}, 'rangemode': 'tozero'}, 'log')
    """
    if values and min(values) > 0 and max(values) > _FAR * median(values):
        return axis("training loss", type="log", exponentformat="power")
    return axis("training loss", rangemode="tozero")


def axis(title: str, **more: Any) -> dict[str, Any]:
    """An axis and what is said along it."""
    return {"title": {"text": label(title)}, **more}


def lone(values: Iterable[float]) -> dict[str, Any]:
    """A range for an axis all of whose values are one; Plotly would draw it from one below to one above.

    >>> lone([0.5, 0.5]), lone([0.5, 0.75])
    ({'range': [0.45, 0.55]}, {})
    """
    known = set(values)
    return {"range": [min(known) - 0.05, max(known) + 0.05]} if len(known) == 1 else {}


def fitted(values: Iterable[float]) -> list[float]:
    """The range of an axis of accuracies: the values with some room, and no more than there can be.

    >>> fitted([0.5, 0.75]), fitted([0.9]), fitted([0.0, 1.0])
    ([0.475, 0.775], [0.85, 0.95], [-0.02, 1.03])
    """
    known = list(values)
    low, high = min(known), max(known)
    room = max((high - low) / 10, 0.05 if high - low < 0.05 else 0.0)
    return [round(max(low - room, -0.02), 4), round(min(high + room, 1.03), 4)]


def curve(index: int, points: Sequence[tuple[float, float]], **more: Any) -> dict[str, Any]:
    """A curve; by its index it keeps its colour and dash in every figure."""
    return {
        "type": "scatter",
        "mode": "lines+markers" if len(points) <= FEW else "lines",
        "x": [x for x, _ in points],
        "y": [y for _, y in points],
        "line": {"color": colour(index), "dash": dash(index), "width": 2.25},
        "marker": {"color": colour(index), "size": 6},
        **more,
    }


def names_axis(**more: Any) -> dict[str, Any]:
    """An axis of names, in the order given, whatever they look like."""
    return {"type": "category", "showgrid": False, **more}


def whole_axis(title: str, most: int, **more: Any) -> dict[str, Any]:
    """An axis of things that are counted: about ten ticks, at whole numbers only.

    >>> [whole_axis("round", most)["dtick"] for most in (1, 10, 11, 200, 1000)]
    [1, 1, 2, 20, 100]
    """
    steps = (digit * 10**power for power in range(9) for digit in (1, 2, 5))
    return axis(title, tick0=0, dtick=next(step for step in steps if step * 10 >= most), tickformat=",d", **more)


def level(at: float, colour: str, dash: str = "dash", *, upright: bool = False) -> dict[str, Any]:
    """A line right across a figure, at a value of its vertical axis, or upright at one of its horizontal axis."""
    along, across = ("y", "x") if upright else ("x", "y")
    return {
        "type": "line",
        f"{along}0": 0,
        f"{along}1": 1,
        f"{along}ref": "paper",
        f"{across}0": at,
        f"{across}1": at,
        "line": {"color": colour, "dash": dash, "width": 1.5},
    }
