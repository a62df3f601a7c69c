"""A figure as data: what Plotly draws, what a key says, and the sentence for those who cannot see it.

Colours are names of the page's own (`var(--series-1)`), which the page fills in, so that a figure follows light, dark
and print without being made twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

SERIES = 7  # colours the page has; after them they come again with another dash
DASHES = {"solid": "", "dash": "7 4", "dot": "2 3", "dashdot": "7 3 2 3"}
ALARM = "var(--alarm)"


@dataclass(frozen=True)
class Key:
    """A line of a figure's key. With a trace, it is a switch for it."""

    label: str
    colour: str
    trace: int | None = None
    dash: str = ""  # of a line, as SVG writes it
    shape: str = "line"  # line, box or cross


@dataclass(frozen=True)
class Figure:
    id: str
    title: str
    sentence: str
    caption: str
    data: list[dict[str, Any]]
    layout: dict[str, Any]
    keys: list[Key] = field(default_factory=list)

    def spec(self) -> dict[str, Any]:
        """What the page's script is given."""
        return {"data": self.data, "layout": self.layout}


def colour(number: int) -> str:
    return f"var(--series-{number % SERIES + 1})"


def dash(number: int) -> str:
    """Every line has its own dash too: colour alone tells nothing to some, and nothing on grey paper."""
    return list(DASHES)[number % len(DASHES)]


def axis(title: str, **more: Any) -> dict[str, Any]:
    return {"title": {"text": title}, **more}


def whole_axis(title: str, most: int, **more: Any) -> dict[str, Any]:
    """An axis of things that are counted: about ten ticks, at whole numbers only.

    >>> [whole_axis("round", most)["dtick"] for most in (1, 10, 11, 200, 1000)]
    [1, 1, 2, 20, 100]
    """
    steps = (digit * 10**power for power in range(9) for digit in (1, 2, 5))
    return axis(title, tick0=0, dtick=next(step for step in steps if step * 10 >= most), tickformat=",d", **more)
