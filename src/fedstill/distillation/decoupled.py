"""Decoupled distillation: soft targets split into a target-class term and a non-target-class term."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedstill.core.settings import Settings
from fedstill.distillation.numerics import soften
from fedstill.distillation.objective import Lesson, Objective, Terms, objectives


def target_class(student: Tensor, teacher: Tensor, targets: Tensor, temperature: float) -> Tensor:
    """TCKD: T^2 KL between (p_target, 1 - p_target) of teacher and student, mean over the batch.

    >>> student, teacher = torch.tensor([[0.5, 0.25, 0.25]]).log(), torch.tensor([[0.8, 0.1, 0.1]]).log()
    >>> round(target_class(student, teacher, torch.tensor([0]), 1.0).item(), 4)  # 0.8 ln 1.6 + 0.2 ln 0.4
    0.1927
    """
    ours, theirs = (_binary(soften(side, temperature), targets) for side in (student, teacher))
    return temperature**2 * F.kl_div(ours, theirs, reduction="batchmean", log_target=True)


def other_classes(student: Tensor, teacher: Tensor, targets: Tensor, temperature: float) -> Tensor:
    """NCKD: T^2 KL between the distributions of teacher and student over the non-target classes, mean over the batch.

    >>> student, teacher = torch.tensor([[0.5, 0.25, 0.25]]).log(), torch.tensor([[0.5, 0.4, 0.1]]).log()
    >>> round(other_classes(student, teacher, torch.tensor([0]), 1.0).item(), 4)  # 0.8 ln 1.6 + 0.2 ln 0.4
    0.1927
    """
    ours, theirs = (F.log_softmax(_others(soften(side, temperature), targets), dim=1) for side in (student, teacher))
    return temperature**2 * F.kl_div(ours, theirs, reduction="batchmean", log_target=True)


def _others(log_probabilities: Tensor, targets: Tensor) -> Tensor:
    """The values without the target's column, (batch, classes - 1)."""
    batch, classes = log_probabilities.shape
    kept = torch.ones_like(log_probabilities, dtype=torch.bool).scatter_(1, targets.unsqueeze(1), False)
    return log_probabilities[kept].view(batch, classes - 1)


def _binary(log_probabilities: Tensor, targets: Tensor) -> Tensor:
    """Logarithms of (p_target, 1 - p_target); the second is summed over the other classes, to be exact near one."""
    target = log_probabilities.gather(1, targets.unsqueeze(1))
    return torch.cat([target, _others(log_probabilities, targets).logsumexp(dim=1, keepdim=True)], dim=1)


class DecoupledSettings(Settings):
    target: float = Field(1.0, ge=0, description="alpha_D: weight of the target-class term")
    others: float = Field(8.0, ge=0, description="beta_D: weight of the term of all other classes")
    temperature: float = Field(2.0, gt=0, description="T: both terms are at this temperature, times T^2")


@objectives.register("dkd")
class Decoupled(Objective):
    """Decoupled distillation (DKD) of target and non-target classes: CE + 1 TCKD + 8 NCKD.

    *Decoupled Knowledge Distillation*, Zhao et al., 2022, https://arxiv.org/abs/2203.08679

    With p the teacher's probability of the target, T^2 KL = TCKD + (1 - p) NCKD: vanilla distillation suppresses the
    second term where the teacher is confident. The paper's warm-up of the terms is omitted, as in the benchmark that
    the defaults come from. Without labels the target is the teacher's most likely class; the true class would leak
    labels into a label-free control.
    """

    name = "dkd"
    Options = DecoupledSettings
    settings: DecoupledSettings
    targets_labels = True

    def label_weight(self) -> float:
        return 1.0

    def from_teacher(self, lesson: Lesson) -> Terms:
        targets = self.given(lesson.labels) if self.labelled else lesson.teacher.log_probabilities.argmax(dim=1)
        temperature = self.settings.temperature
        return {
            "target-class": self.settings.target * target_class(*lesson.log_probabilities, targets, temperature),
            "other-classes": self.settings.others * other_classes(*lesson.log_probabilities, targets, temperature),
        }
