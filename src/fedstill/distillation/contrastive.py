"""Contrastive distillation: identify a sample's own teacher embedding among those of the batch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedstill.core.settings import Settings
from fedstill.distillation.logits import soft_targets
from fedstill.distillation.numerics import unit
from fedstill.distillation.objective import Adapters, Lesson, Objective, Terms, heads, objectives


def contrast(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """InfoNCE: cross-entropy of identifying a sample's own teacher embedding in the batch, by cosine / temperature.

    >>> apart = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> round(contrast(apart, apart, 1.0).item(), 4)  # ln(1 + 1/e)
    0.3133
    """
    similarities = unit(student) @ unit(teacher).T / temperature
    return F.cross_entropy(similarities, torch.arange(len(student), device=student.device))


class ContrastSettings(Settings):
    # Below one: at one no term would train the classifier.
    alpha: float = Field(
        0.5, ge=0, lt=1, description="alpha: weight of the contrastive term; the label term has 1 - alpha"
    )
    contrast_temperature: float = Field(
        0.07, gt=0, description="temperature of the contrastive term, which divides the cosines"
    )
    width: int = Field(128, ge=1, description="dimension of the embeddings that are contrasted")


@objectives.register("crd")
class Contrastive(Objective):
    """Contrastive distillation (CRD): (1-a) CE + a InfoNCE(h_s(f_s), h_t(f_t)).

    *Contrastive Representation Distillation*, Tian, Krishnan and Isola, 2019, https://arxiv.org/abs/1910.10699

    The paper contrasts with a memory of many thousands of negatives; here the negatives are the rest of the batch.
    There is no label-free control: the teacher's term never reaches the classifier, whose last layer would keep its
    initial weights, so the student's accuracy would not measure the teacher. `crd+kl` has one.
    """

    name = "crd"
    Options = ContrastSettings
    settings: ContrastSettings
    compares_features = True
    assessable = False

    def label_weight(self) -> float:
        return 1 - self.settings.alpha

    def adapters(self, student_width: int, teacher_width: int) -> Adapters:
        return heads(student_width, teacher_width, self.settings.width)

    def from_teacher(self, lesson: Lesson) -> Terms:
        embeddings = self.compared(lesson)
        return {"contrast": self.settings.alpha * contrast(*embeddings, self.settings.contrast_temperature)}


class ContrastAndSoftSettings(ContrastSettings):
    temperature: float = Field(2.0, gt=0, description="T: soft targets are softmax(logits / T), their loss times T^2")


@objectives.register("crd+kl")
class ContrastiveAndSoft(Contrastive):
    """CRD with soft targets: (1-a) CE + a InfoNCE + a T^2 KL; it has a label-free control.

    `crd` plus vanilla's term at the same weight. Without labels both teacher terms keep their weights.
    """

    name = "crd+kl"
    Options = ContrastAndSoftSettings
    settings: ContrastAndSoftSettings
    assessable = True

    def from_teacher(self, lesson: Lesson) -> Terms:
        soft = self.settings.alpha * soft_targets(*lesson.log_probabilities, self.settings.temperature)
        return {**super().from_teacher(lesson), "soft-targets": soft}
