"""What objectives are made of: how large their terms are, and how far the teacher's outputs alone could lead."""

from __future__ import annotations

from math import floor, log10
from typing import Any

from fedstill.audit.term_magnitudes import IDLE, parts, students_with_terms
from fedstill.audit.term_magnitudes import term_sizes as sizes_of
from fedstill.core.numbers import share
from fedstill.report.figure import Figure, Key, axis, label, names_axis
from fedstill.report.study.marks import Mark, fills
from fedstill.report.study.view import View

_ROW = 25
_LARGE, _SMALL = Mark("", "var(--faithful)"), Mark("▽", "var(--masked)", "/")


def term_sizes(view: View) -> dict[str, dict[str, float]]:
    """The mean size of each term by objective, over teachers and seeds, as the audit takes it."""
    students = view.audit.evidence.students
    found = {objective: sizes_of(students_with_terms(students, objective)) for objective in view.objective}
    return {objective: sizes for objective, sizes in found.items() if sizes}


def terms(view: View) -> list[Figure]:
    """Terms on a logarithmic scale; those too small to matter are hatched, and said to be."""
    rows = [
        (f"{objective}: {term}", sizes[term], part)
        for objective, sizes in term_sizes(view).items()
        for term, part in parts(sizes).items()
        if part > 0
    ]
    if not rows:
        return []
    idle = [name for name, _, part in rows if part < IDLE]
    bars = {
        "type": "bar",
        "orientation": "h",
        "x": [size for _, size, _ in rows],
        "y": [label(name) for name, _, _ in rows],
        "text": [f"  {size:.2g}{' ▽ below 1 %' if part < IDLE else ''}" for _, size, part in rows],
        "textposition": "outside",
        "cliponaxis": False,
        "marker": fills([_SMALL if part < IDLE else _LARGE for _, _, part in rows]),
        "hovertemplate": "%{y}: %{x:.3g}<extra></extra>",
    }
    low, high = min(size for _, size, _ in rows), max(size for _, size, _ in rows)
    keys = [Key("a term that counts", _LARGE.colour, shape="box")]
    if idle:
        keys.append(Key("▽ below 1 % of its objective's largest", _SMALL.colour, shape="hatched", symbol=_SMALL.hatch))
    return [
        Figure(
            "terms",
            "How large the terms of each objective are",
            "Mean size of each loss term: " + ", ".join(f"{name} {size:.2g}" for name, size, _ in rows) + ".",
            "Mean over training, teachers and seeds, each term with its weight, on a logarithmic scale. A term far"
            " below the largest of its objective decides nothing.",
            [bars],
            {
                "height": 75 + _ROW * len(rows),
                "bargap": 0.25,
                "xaxis": axis("mean size", type="log", range=_decades(low, high), dtick=1, exponentformat="power"),
                "yaxis": names_axis(range=[len(rows) - 0.5, -0.5]),
            },
            keys,
            width=460,
        )
    ]


def ceilings(view: View) -> list[Figure]:
    """For each objective that has a masking ceiling, what was foreseen beside what students reached."""
    return [figure for objective in view.objective for figure in [_ceiling(view, objective)] if figure is not None]


def _ceiling(view: View, objective: str) -> Figure | None:
    rows = [
        pair
        for teacher in view.teachers
        if (pair := view.pairs.get((teacher, objective))) is not None and pair.ceiling is not None
    ]
    if not rows:
        return None
    kinds = (
        ("masking ceiling", "line-ns-open", "var(--alarm)", [pair.ceiling for pair in rows]),
        ("student with labels", "diamond", "var(--series-1)", [pair.labelled for pair in rows]),
        ("student without labels", "diamond-open", "var(--series-1)", [pair.free for pair in rows]),
        ("teacher", "x", "var(--series-7)", [view.accuracy(pair.teacher) for pair in rows]),
    )
    data: list[dict[str, Any]] = []
    keys: list[Key] = []
    for name, mark, colour, values in kinds:
        known = [(pair.teacher, value) for pair, value in zip(rows, values, strict=True) if value is not None]
        if not known:
            continue
        keys.append(_key(name, mark, colour, len(data)))
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": name,
                "x": [value for _, value in known],
                "y": [label(teacher) for teacher, _ in known],
                "marker": {
                    "symbol": mark,
                    "color": colour,
                    "size": 17 if mark.startswith("line") else 10,
                    "line": {"width": 3 if mark.startswith("line") else 2, "color": colour},
                },
                "hovertemplate": f"%{{y}}, {name}: %{{x:.1%}}<extra></extra>",
            }
        )
    told = ", ".join(f"{pair.teacher} {share(pair.ceiling, 1)} and {share(pair.labelled, 1)}" for pair in rows)
    return Figure(
        f"ceiling-{list(view.objective).index(objective)}",
        f"Masking ceiling of {objective}",
        f"Masking ceiling of {objective} and what its labelled students reached: {told}.",
        "The ceiling is computed from the teacher's outputs on the proxy data, before any student is trained: the share"
        " of labels that a student could learn in spite of its teacher. It is a prediction, not a bound.",
        data,
        {
            "height": 90 + _ROW * len(rows),
            "xaxis": axis("accuracy", tickformat=".0%", range=[-0.02, 1.03]),
            "yaxis": names_axis(
                range=[len(rows) - 0.5, -0.5], categoryarray=[label(pair.teacher) for pair in rows], showgrid=True
            ),
        },
        keys,
    )


def _key(name: str, mark: str, colour: str, trace: int) -> Key:
    if mark.startswith("line"):
        return Key(name, colour, (trace,), shape="text", symbol="┃")
    open_ = mark.endswith("-open")
    return Key(name, colour, (trace,), shape="open" if open_ else "symbol", symbol=mark.removesuffix("-open"))


def _decades(low: float, high: float) -> list[float]:
    """The exponents that a logarithmic axis spans: from below the smallest, with room for words after the largest."""
    bottom = floor(log10(low)) - 0.2
    return [bottom, log10(high) + 0.45 * max(1.0, log10(high) - bottom)]
