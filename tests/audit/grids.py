"""Evidence made up for a test: accuracies in percent, by teacher and objective, one for each seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedstill.audit import Evidence, Score, Student, Teacher

Cells = Mapping[tuple[str, str], Sequence[float]]


def scores(values: Sequence[float]) -> list[Score]:
    return [Score(value / 100) for value in values]


def evidence(
    teachers: Mapping[str, Sequence[float]],
    labelled: Cells | None = None,
    free: Cells | None = None,
    weights: Mapping[str, float] | None = None,
    counts: Sequence[int] = (500, 500, 500, 500),
    facts: Mapping[str, Any] | None = None,
    **more: Any,
) -> Evidence:
    """`facts` are given to every teacher; seeds are called 0, 1, 2."""
    students = [
        Student(*pair, str(seed), without, score, hard_label_weight=None if without else (weights or {}).get(pair[1]))
        for side, without in ((labelled, False), (free, True))
        for pair, values in (side or {}).items()
        for seed, score in enumerate(scores(values))
    ]
    return Evidence(
        name="made up",
        about="Nothing.",
        teachers=tuple(
            Teacher(name, str(seed), score, **(facts or {}))
            for name, values in teachers.items()
            for seed, score in enumerate(scores(values))
        ),
        students=tuple(students),
        class_counts=tuple(counts),
        **more,
    )
