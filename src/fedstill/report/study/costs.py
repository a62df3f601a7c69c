"""What models cost on a device: teachers' and students' side by side, and accuracy against size and latency.

A study may have teachers and students of several architectures, and each stands at its own cost. What was not
measured is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fedstill.core.numbers import listed, share, unit_of
from fedstill.report.figure import Figure, Key, Shape, axis, colour, label, names_axis
from fedstill.report.study.extras import Cost, Extras
from fedstill.report.study.marks import Mark, fills
from fedstill.report.study.view import View

_TEACHER, _STUDENT = Mark("", "var(--series-7)", "/"), Mark("", "var(--series-1)")
_ROOM = 1.15  # above the highest bar, for its number


def savings(view: View, extras: Extras) -> list[Figure]:
    """What students save."""
    known = _by_model(extras)
    teachers = _used(known, (view.teacher_model(name) for name in view.teacher))
    students = _used(known, (view.student_model(pair) for pair in view.audit.pairs))
    if not teachers or not students:
        return []
    everyone = [*teachers, *students]
    names = [*(_below("teacher", one) for one in teachers), *(_below("student", one) for one in students)]
    marks = [_TEACHER] * len(teachers) + [_STUDENT] * len(students)
    unit, scale = unit_of(max(one.bytes for one in everyone))
    sizes, times = [one.bytes / scale for one in everyone], _times(everyone)
    data = [_bars(names, sizes, unit, marks, "x", "y")]
    layout: dict[str, Any] = {
        "height": 300,
        "xaxis": names_axis(),
        "yaxis": axis(f"size ({unit})", range=[0, _ROOM * max(sizes)]),
    }
    if times:
        data.append(_bars(names, times, "ms", marks, "x2", "y2"))
        layout["xaxis"]["domain"] = [0, 0.42]
        layout["xaxis2"] = names_axis(domain=[0.58, 1], anchor="y2")
        layout["yaxis2"] = axis("a batch (ms)", range=[0, _ROOM * max(times)], anchor="x2")
    told = " ".join(_compared(teachers, students))
    return [
        Figure(
            "compression",
            "What the student saves" if len(students) == 1 else "What students save",
            told,
            told + _where(everyone),
            data,
            layout,
            width=130 * len(data) * len(everyone) if len(everyone) > 2 else 0,
        )
    ]


def _compared(teachers: Sequence[Cost], students: Sequence[Cost]) -> list[str]:
    """Each student beside each teacher, a sentence each."""
    told = []
    for student in students:
        for teacher in teachers:
            if student.model == teacher.model:
                told.append(f"The student {student.model} is as large as its teacher.")
                continue
            words = [_factor(teacher.bytes / student.bytes, "smaller", "larger")]
            if teacher.milliseconds is not None and student.milliseconds:
                words.append(_factor(teacher.milliseconds / student.milliseconds, "faster", "slower"))
            told.append(f"The student {student.model} is {' and '.join(words)} than the teacher {teacher.model}.")
    return told


def _factor(ratio: float, more: str, less: str) -> str:
    """How much a student differs, said the way round that has a factor above one.

    >>> _factor(4.0, "smaller", "larger"), _factor(0.5, "faster", "slower")
    ('4.0 times smaller', '2.0 times slower')
    """
    return f"{ratio:.1f} times {more}" if ratio >= 1 else f"{1 / ratio:.1f} times {less}"


def _bars(
    names: Sequence[str], values: Sequence[float], unit: str, marks: Sequence[Mark], x: str, y: str
) -> dict[str, Any]:
    return {
        "type": "bar",
        "x": list(names),
        "y": list(values),
        "xaxis": x,
        "yaxis": y,
        "text": [f"{value:.3g} {unit}" for value in values],
        "textposition": "outside",
        "cliponaxis": False,
        "marker": fills(marks),
        "hovertemplate": f"%{{x}}: %{{y:.3g}} {unit}<extra></extra>",
    }


def _below(role: str, cost: Cost) -> str:
    """What stands below a bar."""
    return f"{role}<br>{label(cost.model)}"


@dataclass(frozen=True)
class _Group:
    """Marks of one kind: accuracy and cost of each."""

    name: str
    marks: Sequence[tuple[float, Cost]]
    symbol: str
    shape: Shape = "symbol"


def against_cost(view: View, extras: Extras) -> list[Figure]:
    """Teachers and students by size and by latency, where both are known."""
    groups = _groups(view, _by_model(extras))
    drawn = [cost for group in groups for _, cost in group.marks]
    if len(groups) < 2 or groups[0].name != "teachers":
        return []
    unit, scale = unit_of(max(cost.bytes for cost in drawn))
    figures = [
        _against("size", "Accuracy against size", f"size of the model ({unit})", groups, lambda one: one.bytes / scale)
    ]
    if _times(drawn):
        devices = list(dict.fromkeys(cost.device for cost in drawn if cost.device))
        across = ", ".join(["milliseconds for a batch", *devices])
        figures.append(
            _against("latency", "Accuracy against latency", across, groups, lambda one: one.milliseconds or 0.0)
        )
    return figures


def _groups(view: View, known: dict[str, Cost]) -> list[_Group]:
    """Those that have somebody in them."""
    pairs = view.audit.pairs
    students = [(pair, view.student_model(pair)) for pair in pairs]
    teachers = [(verdict.accuracy, view.teacher_model(name)) for name, verdict in view.teacher.items()]

    def marks(each: Iterable[tuple[float | None, str | None]]) -> list[tuple[float, Cost]]:
        return [
            (accuracy, known[model])
            for accuracy, model in each
            if accuracy is not None and model is not None and model in known
        ]

    found = [
        _Group("teachers", marks(teachers), "circle"),
        _Group("students with labels", marks((pair.labelled, model) for pair, model in students), "diamond"),
        _Group("students without labels", marks((pair.free, model) for pair, model in students), "diamond", "open"),
    ]
    return [group for group in found if group.marks]


def _against(id: str, title: str, across: str, groups: Sequence[_Group], take: Callable[[Cost], float]) -> Figure:
    most = max(take(cost) for group in groups for _, cost in group.marks)
    data: list[dict[str, Any]] = []
    keys: list[Key] = []
    for number, group in enumerate(groups):
        # A little to the side, or students with and without labels would hide each other.
        aside = 0.02 * most if group.shape == "open" else 0.0
        keys.append(Key(group.name, colour(number), (number,), shape=group.shape, symbol=group.symbol))
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": group.name,
                "x": [take(cost) + aside for _, cost in group.marks],
                "y": [accuracy for accuracy, _ in group.marks],
                "text": [f"{label(cost.model)}, {take(cost):.3g}" for _, cost in group.marks],
                "marker": {
                    "color": colour(number),
                    "symbol": group.symbol + ("-open" if group.shape == "open" else ""),
                    "size": 9,
                    "opacity": 0.75,
                },
                "hovertemplate": f"{group.name}: %{{text}}, %{{y:.1%}}<extra></extra>",
            }
        )
    return Figure(
        id,
        title,
        f"{title}: {'; '.join(told for group in groups for told in _told(group, take))}.",
        "Every teacher and every student, mean over seeds, at what its own model takes.",
        data,
        {
            "xaxis": axis(across, range=[0, 1.12 * most]),
            "yaxis": axis("test accuracy", range=[-0.02, 1.04], tickformat=".0%"),
        },
        keys,
    )


def _told(group: _Group, take: Callable[[Cost], float]) -> list[str]:
    """The range of accuracies at each model."""
    by_model: dict[str, list[tuple[float, Cost]]] = {}
    for accuracy, cost in group.marks:
        by_model.setdefault(cost.model, []).append((accuracy, cost))
    return [
        f"{group.name} ({model}) at {take(own[0][1]):.3g},"
        f" from {share(min(own, key=_accuracy)[0], 1)} to {share(max(own, key=_accuracy)[0], 1)}"
        for model, own in by_model.items()
    ]


def _accuracy(mark: tuple[float, Cost]) -> float:
    return mark[0]


def _by_model(extras: Extras) -> dict[str, Cost]:
    return {cost.model: cost for cost in extras.costs}


def _used(known: dict[str, Cost], models: Iterable[str | None]) -> list[Cost]:
    """The costs of these models, each once."""
    return [known[model] for model in dict.fromkeys(models) if model is not None and model in known]


def _times(costs: Sequence[Cost]) -> list[float]:
    """Milliseconds of all, or nothing if some were not measured."""
    found = [one.milliseconds for one in costs if one.milliseconds is not None]
    return found if len(found) == len(costs) else []


def _where(costs: Sequence[Cost]) -> str:
    devices = list(dict.fromkeys(one.device for one in costs if one.device))
    return f" Latency was measured on: {listed(devices)}." if devices else ""
