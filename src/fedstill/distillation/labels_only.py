"""The labels-only student: the baseline without a teacher that every distilled student is compared with."""

from __future__ import annotations

from typing import ClassVar

from fedstill.distillation.objective import Lesson, Objective, Terms, objectives


@objectives.register("labels-only")
class LabelsOnly(Objective):
    """No teacher: cross-entropy with the labels, on the same data and with the same schedule as any student.

    A detector is trained with its task's loss instead.
    """

    name = "labels-only"
    assessable: ClassVar[bool] = False
    least_teachers: ClassVar[int] = 0
    students: ClassVar[frozenset[str]] = frozenset({"classifier", "detector"})

    def label_weight(self) -> float:
        return 1.0

    def from_teacher(self, lesson: Lesson) -> Terms:
        return {}
