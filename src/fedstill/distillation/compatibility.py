"""Compatibility checks of student, teachers and objective on dummy inputs, before any training."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from fedstill.core.errors import InputError
from fedstill.core.task import OWN_LOSS, Output, Task
from fedstill.distillation.objective import Objective
from fedstill.distillation.outputs import finds_boxes, width_of
from fedstill.distillation.teachers import TeacherModel, first_outputs
from fedstill.models import models
from fedstill.tasks.task_choice import task_of, tasks


@dataclass(frozen=True)
class Widths:
    """The number of classes and the feature widths of student and teachers, per sample or per query."""

    classes: int
    student: int  # features
    teachers: tuple[int, ...]  # of each teacher; 0: it has no features


def check_objective(objective: Objective, task: Task) -> None:
    """Refuse an objective that does not support this kind of student."""
    detects, student = task.finds_boxes, task.architectures[0]
    if ("detector" if detects else "classifier") in objective.students:
        return
    if detects:
        raise InputError(
            f"the objective {objective.name} compares what is said of whole samples, and {student} finds boxes:"
            " choose the objective detector"
        )
    raise InputError(
        f"the objective {objective.name} compares boxes that were found, and {student} finds none: choose another one,"
        " such as vanilla"
    )


def check_compatibility(task: Task, teachers: Sequence[TeacherModel]) -> Widths:
    """The feature widths, measured on two dummy inputs; an incompatible teacher is refused."""
    student = _first_outputs(None, task)
    boxes = finds_boxes(student)
    if student.log_probabilities.ndim != 2 and not boxes and not isinstance(task, tasks["multilabel"]):
        raise InputError(
            "distillation is for detectors and models that say one thing of a sample, and"
            f" {task.architectures[0]} labels every point"
        )
    classes, widths = student.log_probabilities.shape[-1], []
    for teacher in teachers:
        if teacher.architecture in models and task_of(teacher.architecture).finds_boxes != boxes:
            which = ("no detector", "one") if boxes else ("a detector", "none")
            raise InputError(
                f"the teacher {teacher.name} ({teacher.architecture}) is {which[0]}, and the student"
                f" ({task.architectures[0]}) is {which[1]}: both must be asked the same"
            )
        said = _first_outputs(teacher, task)
        theirs, ours = said.log_probabilities.shape, student.log_probabilities.shape
        if len(theirs) != len(ours) or (theirs[-1] != classes if boxes else theirs[1:] != ours[1:]):
            raise InputError(
                f"the teacher {teacher.name} says {tuple(said.log_probabilities.shape[1:])} numbers of an input, and"
                f" there are {classes} classes: it must know the same classes in the same order"
            )
        if said.features.shape[:-1] != student.features.shape[:-1]:
            raise InputError(
                f"the teacher {teacher.name} gives features of shape {tuple(said.features.shape[1:])}: they must be"
                " one vector for each input"
            )
        widths.append(width_of(said))
    return Widths(classes, width_of(student), tuple(widths))


def term_names(
    task: Task, objective: Objective, teachers: Sequence[TeacherModel], widths: Widths, adapters: nn.Module | None
) -> tuple[str, ...]:
    """The names of the objective's loss terms, computed on a dummy batch."""
    if task.finds_boxes:
        student = replace(_first_outputs(None, task), terms=dict.fromkeys(task.terms, torch.zeros(())))
        teacher = _first_outputs(teachers[0], task) if teachers else student
    else:
        several = (len(task.classes),) if isinstance(task, tasks["multilabel"]) else ()
        said = torch.full((2, *several, widths.classes), 0.5).log()
        student, teacher = (Output(said, torch.eye(2, width)) for width in (widths.student, sum(widths.teachers)))
        if OWN_LOSS in task.terms:
            student = replace(student, terms={OWN_LOSS: torch.zeros(())})
    labels = torch.tensor([0, 1])
    if isinstance(task, tasks["multilabel"]):
        labels = labels.unsqueeze(1).expand(-1, len(task.classes))
    return tuple(objective.terms(student, teacher, labels, adapters))


_recent: deque[tuple[Task, TeacherModel | None, Output]] = deque(maxlen=16)  # a study asks the same again and again


def _first_outputs(teacher: TeacherModel | None, task: Task) -> Output:
    """Of an untrained student, where no teacher is given; the same objects are not asked twice."""
    for asked, model, said in _recent:
        if asked is task and model is teacher:
            return said
    architecture = task.architectures[0]
    asked_model = teacher or TeacherModel("student", architecture, task.build(architecture))
    said = first_outputs(asked_model, task)
    _recent.append((task, teacher, said))
    return said
