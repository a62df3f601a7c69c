"""Layers that are learnt beside the student so that its features can be compared with the teacher's.

They are trained with the student and thrown away with the run: a student that ships has none of them. Their initial
weights come from torch's global generator, so they are built inside a `Streams.ambient` scope.
"""

from __future__ import annotations

from torch import Tensor, nn


class Adapters(nn.Module):
    """Maps the features of student and teacher into a space where they can be compared."""

    def __init__(self, student: nn.Module, teacher: nn.Module | None = None) -> None:
        super().__init__()
        self.student = student
        self.teacher = nn.Identity() if teacher is None else teacher

    def forward(self, student: Tensor, teacher: Tensor) -> tuple[Tensor, Tensor]:
        return self.student(student), self.teacher(teacher)


def projection(student_width: int, teacher_width: int) -> Adapters:
    """phi: the student's features, linearly mapped to the teacher's width; the teacher's stay what they are.

    There is one even where the widths agree: equal width does not mean equal axes.

    >>> import torch
    >>> student, teacher = projection(3, 5)(torch.zeros(2, 3), torch.ones(2, 5))
    >>> tuple(student.shape), teacher.min().item()
    ((2, 5), 1.0)
    """
    return Adapters(nn.Linear(student_width, teacher_width))


def heads(student_width: int, teacher_width: int, width: int) -> Adapters:
    """One linear head for each side, into a common space of `width` numbers."""
    return Adapters(nn.Linear(student_width, width), nn.Linear(teacher_width, width))
