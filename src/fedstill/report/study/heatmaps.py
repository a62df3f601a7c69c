"""Teachers by objectives: a cell for every pair, and above each column its mean."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedstill.audit.verdicts import NOT_ASSESSABLE, PairVerdict
from fedstill.core.numbers import capital, points, share
from fedstill.report.facts import number
from fedstill.report.figure import QUIET, Figure, Key, label, names_axis
from fedstill.report.study.marks import STUDENTS, TIMES
from fedstill.report.study.view import View, mean

_CELL = 39  # pixels that a number needs
_ROW = 25
_SHADES = [[step / 3, f"var(--shade-{step})"] for step in range(4)]
_TWO_SIDED = [[step / 4, f"var(--two-sided-{step})"] for step in range(5)]
_HOLES = f" {TIMES} marks what was not run or could not be, n/a what cannot be assessed."
_SIGNED = {"masked": "▲", "inconclusive": "?"}  # what is worth a sign in a cell


@dataclass(frozen=True)
class _Grid:
    """One quantity of every pair."""

    id: str
    title: str
    caption: str
    what: str  # the quantity in a sentence
    value: Callable[[PairVerdict], float | None]
    free: bool = False  # whose absence explains a missing cell
    two_sided: bool = False  # a difference, whose sign matters
    signed: bool = False


_GRIDS = (
    _Grid(
        "labelled",
        "Students trained with labels",
        "Test accuracy (%) of the student for every teacher (rows, with its own accuracy) and objective, mean over"
        " seeds; bars above are the means of columns. ▲ marks a masked cell, ? one that is inconclusive.",
        "accuracy of labelled students",
        lambda pair: pair.labelled,
        signed=True,
    ),
    _Grid(
        "free",
        "The same without labels",
        "Test accuracy (%) of the label-free control: the same teacher and objective, but nothing of the labels. What"
        " is lost against the figure of students trained with labels did not come from the teacher.",
        "accuracy of label-free students",
        lambda pair: pair.free,
        free=True,
    ),
    _Grid(
        "masking",
        "Masking: what the labels added",
        "Labelled student minus label-free control, in points. ▲: the whole interval lies above the threshold; ?: the"
        " interval holds the threshold.",
        "masking",
        lambda pair: pair.masking,
        free=True,
        two_sided=True,
        signed=True,
    ),
    _Grid(
        "synergy",
        "Synergy: is the pipeline better than its parts?",
        "Labelled student minus the better of its teacher and of a student that saw only labels, in points. At or"
        " below zero, combining the two bought nothing.",
        "synergy",
        lambda pair: pair.synergy,
        two_sided=True,
    ),
)


def heatmaps(view: View) -> list[Figure]:
    """Those of which something is known."""
    return [_figure(view, grid) for grid in _GRIDS if any(grid.value(pair) is not None for pair in view.audit.pairs)]


def _figure(view: View, grid: _Grid) -> Figure:
    teachers, objectives = view.teachers, list(view.objective)
    rows, columns = [_row(view, name) for name in teachers], [label(name) for name in objectives]
    cells = [[view.pairs.get((teacher, objective)) for objective in objectives] for teacher in teachers]
    values = [[number(cell and grid.value(cell)) for cell in row] for row in cells]
    means = [mean(column) for column in zip(*values, strict=True)]
    holes = [
        (columns[across], rows[down], _why(view, grid, teachers[down], objectives[across]))
        for down, row in enumerate(values)
        for across, value in enumerate(row)
        if value is None
    ]
    return Figure(
        grid.id,
        grid.title,
        _sentence(grid, dict(zip(objectives, means, strict=True))),
        grid.caption + (_HOLES if holes else ""),
        [_means(columns, means, grid), _cells(columns, rows, values, cells, grid), *_holes(holes)],
        {
            "height": 175 + _ROW * len(rows),
            "margin": {"l": 20, "r": 8, "t": 8, "b": 20},
            "bargap": 0.15,
            "xaxis": names_axis(tickangle=-40, categoryarray=columns, range=[-0.5, len(columns) - 0.5]),
            "yaxis": names_axis(domain=[0, 1 - 60 / (60 + _ROW * len(rows))], range=[len(rows) - 0.5, -0.5]),
            "yaxis2": {
                "domain": [1 - 50 / (60 + _ROW * len(rows)), 1],
                "showticklabels": False,
                "showgrid": False,
                "range": _room(means),
            },
        },
        _keys(view, grid),
        width=round(_CELL * len(columns) + 6.6 * max(map(len, rows)) + 25),
    )


def _row(view: View, teacher: str) -> str:
    accuracy = view.accuracy(teacher)
    if accuracy is not None:
        return f"{label(teacher)} ({100 * accuracy:.1f})"
    return f"{label(teacher)} ({'not finite' if teacher in view.teacher else '?'})"


def _why(view: View, grid: _Grid, teacher: str, objective: str) -> str:
    pair = view.pairs.get((teacher, objective))
    return pair.word if pair and pair.word == NOT_ASSESSABLE else view.missing(teacher, objective, grid.free)


def _cells(
    columns: list[str],
    rows: list[str],
    values: list[list[float | None]],
    cells: list[list[PairVerdict | None]],
    grid: _Grid,
) -> dict[str, Any]:
    most = max((abs(value) for row in values for value in row if value is not None), default=1.0) or 1.0
    texts = [
        [_text(value, pair, grid) for value, pair in zip(numbers, pairs, strict=True)]
        for numbers, pairs in zip(values, cells, strict=True)
    ]
    unit = " points" if grid.two_sided else " %"
    return {
        "type": "heatmap",
        "x": columns,
        "y": rows,
        "z": values,
        "text": texts,
        "customdata": [[pair.word if pair else "" for pair in row] for row in cells],
        "texttemplate": "%{text}",
        "textfont": {"size": 11},
        "colorscale": _TWO_SIDED if grid.two_sided else _SHADES,
        "zmin": -most if grid.two_sided else 0,
        "zmax": most if grid.two_sided else 1,
        "showscale": False,
        "xgap": 1,
        "ygap": 1,
        "hovertemplate": f"%{{y}}, %{{x}}: %{{text}}{unit}, %{{customdata}}<extra></extra>",
    }


def _text(value: float | None, pair: PairVerdict | None, grid: _Grid) -> str:
    if value is None:
        return ""
    sign = _SIGNED.get(pair.word, "") if pair and grid.signed else ""
    shown = round(100 * value, 1) + 0.0  # no minus before a zero
    return f"{shown:{'+' if grid.two_sided else ''}.1f}{sign}"


def _means(columns: list[str], means: list[float | None], grid: _Grid) -> dict[str, Any]:
    return {
        "type": "bar",
        "x": columns,
        "y": means,
        "yaxis": "y2",
        "text": ["" if each is None else f"{round(100 * each)}" for each in means],
        "textposition": "outside",
        "textfont": {"size": 10.5},
        "cliponaxis": False,
        "marker": {"color": "var(--series-7)"},
        "hovertemplate": f"%{{x}}: mean {'%{y:+.3f}' if grid.two_sided else '%{y:.2%}'}<extra></extra>",
    }


def _room(means: list[float | None]) -> list[float]:
    """The range of the bars, with room for their numbers outside."""
    known = [each for each in means if each is not None] or [0.0]
    low, high = min(0.0, *known), max(0.0, *known)
    span = (high - low) or 1.0
    return [low - 0.45 * span if low < 0 else 0.0, high + 0.45 * span if high > 0 else 0.1 * span]


def _holes(holes: list[tuple[str, str, str]]) -> list[dict[str, Any]]:
    if not holes:
        return []
    return [
        {
            "type": "scatter",
            "mode": "text",
            "x": [across for across, _, _ in holes],
            "y": [down for _, down, _ in holes],
            "text": ["n/a" if why == NOT_ASSESSABLE else TIMES for _, _, why in holes],
            "customdata": [label(why) for _, _, why in holes],
            "textfont": {"size": 11, "color": QUIET},
            "hovertemplate": "%{y}, %{x}: %{customdata}<extra></extra>",
        }
    ]


def _keys(view: View, grid: _Grid) -> list[Key]:
    if not grid.signed:
        return []
    found = {pair.word for pair in view.audit.pairs}
    return [
        Key(word, STUDENTS[word].colour, shape="text", symbol=_SIGNED[word])
        for word in STUDENTS
        if word in _SIGNED and word in found
    ]


def _sentence(grid: _Grid, means: dict[str, float | None]) -> str:
    told = [
        f"{name} {'minus ' if mean < 0 else ''}{points(mean)}" if grid.two_sided else f"{name} {share(mean, 1)}"
        for name, mean in means.items()
        if mean is not None
    ]
    return f"{capital(grid.what)} by teacher and objective. Mean over teachers: {', '.join(told)}."
