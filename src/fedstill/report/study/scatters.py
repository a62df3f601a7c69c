"""Accuracy against something: the teacher's own, and what was sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedstill.core.numbers import share, unit_of
from fedstill.report.figure import QUIET, Figure, Key, axis, colour, fitted, label, level, symbol
from fedstill.report.study.view import View, deviation, mean

_ACCURACY = {"tickformat": ".0%"}
_MIB = 2**20


def against_teacher(view: View) -> list[Figure]:
    """Students that learn from their teacher lie along a slope; those that learn from labels lie on a level."""
    data: list[dict[str, Any]] = []
    keys: list[Key] = []
    for index, objective in enumerate(view.objective):
        own = []
        for free in (False, True):
            points = _points(view, objective, free)
            if points:
                own.append(len(data))
                data.append(_marks(objective, points, index, free) | _spreads(view, objective, points, free))
        if own:
            keys.append(Key(objective, colour(index), tuple(own), shape="symbol", symbol=symbol(index)))
    if not data:
        return []
    taught, reached = ([value for trace in data for value in trace[side]] for side in "xy")
    alone = [] if view.alone is None else [view.alone]
    shapes = [_identity(*fitted([*taught, *reached, *alone]))]
    keys += [
        Key("filled: with labels", QUIET, shape="symbol"),
        Key("open: without labels", QUIET, shape="open"),
        Key("as good as its teacher", QUIET, dash="2 3"),
    ]
    if view.alone is not None:
        shapes.append(level(view.alone, "var(--alarm)"))
        keys.append(Key(f"labels only, no teacher ({share(view.alone, 1)})", "var(--alarm)", dash="7 4"))
    flat = "one level" if view.alone is None else "the level of the labels-only line"
    told = [
        f"{name}: r {_r(verdict.correlation)} with labels, {_r(verdict.free_correlation)} without."
        for name, verdict in view.objective.items()
    ]
    return [
        Figure(
            "against-teacher",
            "Does the student follow its teacher?",
            f"Accuracy of the student against that of its teacher, by objective. {' '.join(told)}",
            "Each mark is a pair of teacher and objective, mean over seeds; bars are one standard deviation over seeds."
            " Objectives that pass on what the teacher"
            f" knows rise with it; those that stay on {flat} owe their accuracy to labels.",
            data,
            {
                "height": 440,
                "xaxis": axis("accuracy of the teacher", range=fitted(taught), **_ACCURACY),
                "yaxis": axis("accuracy of the student", range=fitted([*reached, *alone]), **_ACCURACY),
                "shapes": shapes,
            },
            keys,
        )
    ]


def _points(view: View, objective: str, free: bool) -> list[tuple[float, float, str]]:
    points = []
    for teacher, verdict in view.teacher.items():
        pair = view.pairs.get((teacher, objective))
        if pair is None:
            continue
        reached = pair.free if free else pair.labelled
        if reached is not None and verdict.accuracy is not None:
            points.append((verdict.accuracy, reached, teacher))
    return points


def _marks(objective: str, points: Sequence[tuple[float, float, str]], index: int, free: bool) -> dict[str, Any]:
    how = "without labels" if free else "with labels"
    return {
        "type": "scatter",
        "mode": "markers",
        "name": label(f"{objective}, {how}"),
        "x": [x for x, _, _ in points],
        "y": [y for _, y, _ in points],
        "text": [label(teacher) for _, _, teacher in points],
        "marker": {
            "color": colour(index),
            "symbol": symbol(index) + ("-open" if free else ""),
            "size": 9,
            "line": {"width": 1.75 if free else 0, "color": colour(index)},
        },
        "hovertemplate": f"%{{text}} → {label(objective)} ({how}): %{{x:.1%}} → %{{y:.1%}}<extra></extra>",
    }


def _spreads(view: View, objective: str, points: Sequence[tuple[float, float, str]], free: bool) -> dict[str, Any]:
    """Bars of one standard deviation over seeds, of students and of teachers."""
    up = [deviation(view.student_scores(teacher, objective, free).values()) for _, _, teacher in points]
    across = [deviation(view.teacher_scores(teacher).values()) for _, _, teacher in points]
    bars = {"error_y": up, "error_x": across}
    look = {"type": "data", "thickness": 1, "width": 3, "color": QUIET}
    return {name: {**look, "array": values} for name, values in bars.items() if any(values)}


def _identity(low: float, high: float) -> dict[str, Any]:
    line = {"color": QUIET, "dash": "dot", "width": 1.5}
    return {"type": "line", "x0": low, "x1": high, "y0": low, "y1": high, "xref": "x", "yref": "y", "line": line}


def against_traffic(view: View) -> list[Figure]:
    """What teachers reached for what their clients sent."""
    known = []
    for index, (name, verdict) in enumerate(view.teacher.items()):
        sent = mean(teacher.traffic for teacher in view.trained[name])
        if sent and verdict.accuracy is not None:
            known.append((index, name, sent * _MIB, verdict.accuracy))
    if not known:
        return []
    unit, scale = unit_of(max(sent for _, _, sent, _ in known))
    wide = max(sent for _, _, sent, _ in known) > 20 * min(sent for _, _, sent, _ in known)
    data = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": label(name),
            "x": [sent / scale],
            "y": [accuracy],
            "marker": {"color": colour(index), "symbol": symbol(index), "size": 11},
            "hovertemplate": f"{label(name)}: %{{x:.3~f}} {unit}, %{{y:.1%}}<extra></extra>",
        }
        for index, name, sent, accuracy in known
    ]
    keys = [
        Key(name, colour(index), (number,), shape="symbol", symbol=symbol(index))
        for number, (index, name, _, _) in enumerate(known)
    ]
    told = [f"{name} {share(accuracy, 1)} with {sent / scale:.3g} {unit}" for _, name, sent, accuracy in known]
    span = {"type": "log", "dtick": "D2"} if wide else {"rangemode": "tozero"}
    return [
        Figure(
            "traffic",
            "What teachers cost in traffic",
            f"Accuracy of teachers against what their clients sent: {', '.join(told)}.",
            "Measured bytes of the messages from the clients, all rounds, mean over seeds.",
            data,
            {
                "xaxis": axis(f"sent by clients ({unit})", **span),
                "yaxis": axis("accuracy of the teacher", rangemode="tozero", **_ACCURACY),
            },
            keys,
        )
    ]


def _r(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.2f}"
