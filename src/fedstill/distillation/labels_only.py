"""No teacher at all: what a student learns from the labels alone, to compare every other with."""

from __future__ import annotations

from typing import ClassVar

from fedstill.distillation.objective import Lesson, Objective, Terms, objectives


@objectives.register("labels-only")
class LabelsOnly(Objective):
    """No teacher: cross-entropy with the labels, on the same data and by the same schedule as any student.

    A detector has its task's loss instead, which is what the labels say to every detector that learns by itself.
    """

    name = "labels-only"
    assessable: ClassVar[bool] = False
    least_teachers: ClassVar[int] = 0
    students: ClassVar[frozenset[str]] = frozenset({"classifier", "detector"})

    def label_weight(self) -> float:
        return 1.0

    def from_teacher(self, lesson: Lesson) -> Terms:
        return {}
