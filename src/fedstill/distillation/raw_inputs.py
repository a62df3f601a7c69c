"""Raw logits, features and labels from a user's program: checked, normalised, and constant on the teacher's side."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from fedstill.core.errors import InputError
from fedstill.core.numbers import count
from fedstill.core.task import Output
from fedstill.distillation.objective import constant


def log_probabilities_of(given: Tensor, whose: str) -> Tensor:
    """Log-probabilities from logits (batch, classes)."""
    if given.ndim != 2 or 0 in given.shape or not given.is_floating_point():
        raise InputError(
            f"the {whose} logits are {tuple(given.shape)} of {given.dtype}, not floats (batch, classes): flatten any"
            " positions into the batch"
        )
    return F.log_softmax(given, dim=1)


def normalised(student: Tensor, teacher: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probabilities of both; those of the teacher are constants."""
    ours, theirs = log_probabilities_of(student, "student's"), log_probabilities_of(constant(teacher), "teacher's")
    if ours.shape != theirs.shape:
        raise InputError(
            f"the student's logits are {tuple(ours.shape)} and the teacher's {tuple(theirs.shape)}: pass both of the"
            " same batch and classes"
        )
    return ours, theirs


def comparable(
    student: Tensor, teacher: Tensor, batch: int | None = None, one_width: bool = False
) -> tuple[Tensor, Tensor]:
    """The features of both; those of the teacher are constants."""
    shapes = f"the student's features are {tuple(student.shape)} and the teacher's {tuple(teacher.shape)}"
    if student.ndim != 2 or teacher.ndim != 2:
        raise InputError(f"{shapes}, not (batch, width): pool or flatten the other axes")
    if len(student) != len(teacher) or len(student) != (len(student) if batch is None else batch) or not len(student):
        raise InputError(f"{shapes}, which is not one batch: pass both of the same samples as the logits")
    if one_width and student.shape != teacher.shape:
        raise InputError(f"{shapes}: map the student's to the teacher's width, or use the module, which learns that")
    return student, constant(teacher)


def as_output(log_probabilities: Tensor, given: Tensor | None) -> Output:
    """The output that objectives read; without features, those are empty."""
    return Output(log_probabilities, log_probabilities.new_zeros(len(log_probabilities), 0) if given is None else given)


def check_labels(labels: Tensor | None, like: Tensor) -> None:
    """Refuse labels that are not class numbers of this batch."""
    batch, classes = like.shape
    if labels is None:
        raise InputError("this loss reads labels: pass them, or make it with label_free=True")
    if labels.shape != (batch,) or labels.dtype != torch.int64:
        raise InputError(
            f"labels are {tuple(labels.shape)} of {labels.dtype}: pass class numbers ({batch},) of torch.int64"
        )
    if int(labels.min()) < 0 or int(labels.max()) >= classes:
        raise InputError(
            f"labels range over {int(labels.min())}..{int(labels.max())} and there are {count(classes, 'class')}: pass"
            f" numbers in 0..{classes - 1}"
        )


def check_temperature(temperature: float) -> None:
    """Refuse what is no temperature."""
    if not 0 < temperature < math.inf:
        raise InputError(f"a temperature is positive and finite, not {temperature:g}: pass for example 2.0")
