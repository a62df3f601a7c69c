"""How training went on: teachers by round, students by epoch beside their teacher's line."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from fedstill.audit.evidence import Teacher
from fedstill.audit.verdicts import TeacherVerdict
from fedstill.core.numbers import listed, share
from fedstill.report.facts import number
from fedstill.report.figure import (
    ALARM,
    DASHES,
    FEW,
    QUIET,
    Figure,
    Key,
    axis,
    colour,
    curve,
    dash,
    fitted,
    label,
    level,
    whole_axis,
)
from fedstill.report.study.view import View, deviation, mean, mean_curve

Points = Sequence[tuple[int, float]]


def convergence(view: View) -> list[Figure]:
    """Teachers by round, mean over seeds, with a cross where a model was not finite in any of them."""
    data: list[dict[str, Any]] = []
    keys: list[Key] = []
    crosses: list[tuple[int, float, str]] = []
    told = []
    for index, name in enumerate(view.teacher):
        points = _by_round(view.trained[name])
        if points:
            keys.append(Key(name, colour(index), (len(data),), DASHES[dash(index)]))
            data.append(_line(index, name, points, "round") | _bars(_round_deviations(view.trained[name]), index))
            told.append(f"{name} ends with {share(points[-1][1], 1)}.")
        at = dict(points)
        broken = {facts.round for one in view.trained[name] for facts in one.rounds if not facts.finite}
        crosses += [(round, at.get(round, 0.0), name) for round in sorted(broken)]
    if not data and not crosses:
        return []
    if crosses:
        keys.append(Key("model not finite", ALARM, (len(data),), shape="cross"))
        data.append(_crosses(crosses))
    most = max(x for trace in data for x in trace["x"])
    reached = [y for trace in data for y in trace["y"]]
    shapes, chance = _levels(view, None)
    return [
        Figure(
            "convergence",
            "Teachers by round",
            f"Test accuracy of teachers by round. {' '.join(told)}",
            "Share of the test samples that are right after each round: mean over seeds, with one standard deviation."
            + (_broken_words(crosses) if crosses else ""),
            data,
            {
                "height": 400,
                "xaxis": whole_axis("round", most),
                "yaxis": axis("test accuracy", tickformat=".0%", range=fitted([*reached, *_heights(shapes)])),
                "shapes": shapes,
            },
            [*keys, *chance],
        )
    ]


def epochs(view: View) -> list[Figure]:
    """Students by epoch, of the best and of the worst teacher, with labels and without."""
    return [
        figure
        for which, verdict in _ends(view)
        for free in (False, True)
        for figure in [_epochs(view, verdict, which, free)]
        if figure is not None
    ]


def _ends(view: View) -> list[tuple[str, TeacherVerdict]]:
    """The best and the worst teacher of those whose students left curves."""
    named = {teacher for (teacher, _, _), students in view.taught.items() if any(one.curve for one in students)}
    known = [verdict for verdict in view.teacher.values() if verdict.teacher in named and verdict.accuracy is not None]
    if not known:
        return []
    return [("best", known[0])] if len(known) == 1 else [("best", known[0]), ("worst", known[-1])]


def _epochs(view: View, verdict: TeacherVerdict, which: str, free: bool) -> Figure | None:
    data: list[dict[str, Any]] = []
    keys: list[Key] = []
    told = []
    for index, objective in enumerate(view.objective):
        means = mean_curve([one.curve for one in view.taught[verdict.teacher, objective, free]])
        if means:
            keys.append(Key(objective, colour(index), (len(data),), DASHES[dash(index)]))
            curves = [one.curve for one in view.taught[verdict.teacher, objective, free] if one.curve]
            spreads = [deviation(values) for values in zip(*curves, strict=False)]
            data.append(_line(index, objective, list(enumerate(means, 1)), "epoch") | _bars(spreads, index))
            told.append(f"{objective} ends with {share(means[-1], 1)}.")
    if not data:
        return None
    shapes, lines = _levels(view, verdict.accuracy)
    reached = [y for trace in data for y in trace["y"]]
    how = "without labels" if free else "with labels"
    return Figure(
        f"epochs-{which}-{'free' if free else 'labelled'}",
        f"Students of the {which} teacher, {verdict.teacher}, {how}",
        f"Test accuracy by epoch of students of {verdict.teacher} ({share(verdict.accuracy, 1)}), {how}."
        f" {' '.join(told)}",
        f"Test accuracy after each epoch, mean over seeds with one standard deviation, {how}; the thick line is the"
        " teacher's.",
        data,
        {
            "height": 360,
            "xaxis": whole_axis("epoch", max(len(trace["x"]) for trace in data)),
            "yaxis": axis("test accuracy", tickformat=".0%", range=fitted([*reached, *_heights(shapes)])),
            "shapes": shapes,
        },
        [*keys, *lines],
    )


def _levels(view: View, teacher: float | None) -> tuple[list[dict[str, Any]], list[Key]]:
    shapes, keys = [], []
    if teacher is not None:
        line = level(teacher, "var(--ink)", "solid")
        line["line"]["width"] = 3
        shapes.append(line)
        keys.append(Key(f"its teacher ({share(teacher, 1)})", "var(--ink)"))
    if view.audit.chance is not None:
        shapes.append(level(view.audit.chance, QUIET, "dot"))
        keys.append(Key(f"chance ({share(view.audit.chance, 1)})", QUIET, dash="2 3"))
    return shapes, keys


def _by_round(trained: Sequence[Teacher]) -> list[tuple[int, float]]:
    """The mean over seeds of each round, counted from one, where some seed has an accuracy."""
    scores: dict[int, list[float | None]] = defaultdict(list)
    for teacher in trained:
        for facts in teacher.rounds:
            scores[facts.round].append(number(facts.accuracy))
    means = [(round, mean(values)) for round, values in sorted(scores.items())]
    return [(round, value) for round, value in means if value is not None]


def _round_deviations(trained: Sequence[Teacher]) -> list[float]:
    """The standard deviation over seeds of each round that `_by_round` has."""
    scores: dict[int, list[float | None]] = defaultdict(list)
    for teacher in trained:
        for facts in teacher.rounds:
            scores[facts.round].append(number(facts.accuracy))
    return [deviation(values) for _, values in sorted(scores.items()) if mean(values) is not None]


def _bars(spreads: Sequence[float], index: int) -> dict[str, Any]:
    """Bars of one standard deviation over seeds; none on curves with so many points that they would cover them."""
    if not any(spreads) or len(spreads) > FEW:
        return {}
    return {"error_y": {"type": "data", "array": list(spreads), "color": colour(index), "thickness": 1, "width": 3}}


def _heights(shapes: Sequence[dict[str, Any]]) -> list[float]:
    return [float(shape["y0"]) for shape in shapes]


def _line(index: int, name: str, points: Points, unit: str) -> dict[str, Any]:
    hover = f"{label(name)}, {unit} %{{x}}: %{{y:.1%}}<extra></extra>"
    return curve(index, points, name=label(name), hovertemplate=hover)


def _broken_words(crosses: Sequence[tuple[int, float, str]]) -> str:
    names = listed(list(dict.fromkeys(name for _, _, name in crosses)))
    return f" A cross marks a round after which a model was not finite in some seed: {names}."


def _crosses(crosses: Sequence[tuple[int, float, str]]) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "model not finite",
        "x": [round for round, _, _ in crosses],
        "y": [value for _, value, _ in crosses],  # on the floor where no seed has a score
        "text": [label(name) for _, _, name in crosses],
        "marker": {"color": ALARM, "symbol": "x", "size": 9},
        "cliponaxis": False,
        "hovertemplate": "%{text}, round %{x}: not finite<extra></extra>",
    }
