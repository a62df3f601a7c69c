"""Objectives that compare the outputs of student and teacher: soft targets and related losses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedstill.core.errors import InputError
from fedstill.core.settings import Settings
from fedstill.core.task import Output
from fedstill.distillation.numerics import bounded, soften, unit
from fedstill.distillation.objective import Lesson, Mixed, Objective, Softened, Terms, objectives


def soft_targets(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """T^2 KL(teacher || student) of the distributions at temperature T, mean over the batch.

    The factor T^2 keeps the size of the gradient: at a high temperature it tends to (z_s - z_t) / classes, of centred
    logits, for every T.

    >>> student, teacher = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.8, 0.2]]).log()
    >>> round(soft_targets(student, teacher, 1.0).item(), 4)  # 0.8 ln 1.6 + 0.2 ln 0.4
    0.1927
    """
    divergence = F.kl_div(
        soften(student, temperature), soften(teacher, temperature), reduction="batchmean", log_target=True
    )
    return temperature**2 * divergence


def squared_difference(student: Tensor, teacher: Tensor) -> Tensor:
    """Mean over batch and classes of the squared difference of log-probabilities.

    >>> squared_difference(torch.tensor([[-1.0, -2.0]]), torch.tensor([[-1.0, -4.0]])).item()
    2.0
    """
    return F.mse_loss(bounded(student), bounded(teacher))


def cosine_distance(student: Tensor, teacher: Tensor) -> Tensor:
    """1 - cos of the angle between log-probability vectors, mean over the batch.

    >>> cosine_distance(torch.tensor([[-1.0, 0.0]]), torch.tensor([[-1.0, -1.0]])).item()  # 1 - 1 / sqrt(2)
    0.2928932309150696
    """
    return 1 - (unit(bounded(student)) * unit(bounded(teacher))).sum(dim=-1).mean()


def average_teachers(outputs: Sequence[Output]) -> Output:
    """Several teachers combined: the mean of their probabilities, and their features concatenated.

    >>> one, two = (Output(torch.tensor([p]).log(), torch.ones(1, 3)) for p in ([0.5, 0.5], [0.1, 0.9]))
    >>> [round(mean, 4) for mean in average_teachers([one, two]).log_probabilities.exp()[0].tolist()]
    [0.3, 0.7]
    """
    shapes = {tuple(output.log_probabilities.shape) for output in outputs}
    if len(shapes) != 1:
        raise InputError(f"teachers must give one kind of log-probabilities, not shapes {sorted(shapes)}")
    stacked = torch.stack([bounded(output.log_probabilities) for output in outputs])
    mean = stacked.logsumexp(dim=0) - math.log(len(outputs))
    return Output(mean, torch.cat([output.features for output in outputs], dim=1))


class _Logits(Objective):
    """(1-a) CE + a (teacher term); without labels, the teacher term alone."""

    Options: ClassVar[type[Settings]] = Mixed
    settings: Mixed

    def label_weight(self) -> float:
        return 1 - self.settings.alpha

    def label_free_settings(self) -> Settings:
        return self.settings.model_copy(update={"alpha": 1.0})


@objectives.register("vanilla")
class Vanilla(_Logits):
    """Soft targets (vanilla distillation): (1-a) CE + a T^2 KL(teacher || student) at temperature T.

    *Distilling the Knowledge in a Neural Network*, Hinton, Vinyals and Dean, 2015, https://arxiv.org/abs/1503.02531
    """

    name = "vanilla"
    Options = Softened
    settings: Softened

    def from_teacher(self, lesson: Lesson) -> Terms:
        alpha, temperature = self.settings.alpha, self.settings.temperature
        return {"soft-targets": alpha * soft_targets(*lesson.log_probabilities, temperature)}


class SelfSettings(Softened):
    generations: int = Field(
        2, ge=1, description="number of students in sequence, each taught by the one before; the last one is the result"
    )


@objectives.register("self")
class SelfDistillation(Vanilla):
    """Born-again networks: vanilla distillation repeated, each student the teacher of the next.

    *Born-Again Neural Networks*, Furlanello et al., 2018, https://arxiv.org/abs/1805.04770

    The first student learns from the teacher; the second, which is reported, from the first. In the paper all networks
    have the teacher's architecture; here the first generation already has the student's. One generation is `vanilla`.
    """

    name = "self"
    Options = SelfSettings
    settings: SelfSettings

    @property
    def generations(self) -> int:
        return self.settings.generations


@objectives.register("multi-teacher")
class MultiTeacher(Vanilla):
    """Vanilla distillation from the mean distribution of several teachers.

    *Learning from Multiple Teacher Networks*, You et al., 2017, https://doi.org/10.1145/3097983.3098135

    The mean is over probabilities with equal weights, and is softened afterwards (`average_teachers`); the paper
    softens first. Its triplet loss on intermediate layers is omitted.
    """

    name = "multi-teacher"
    least_teachers = 2


@objectives.register("basic")
class Basic(Vanilla):
    """Soft targets with labels at full weight: CE + a T^2 KL.

    The objective of the paper cited in `vanilla` with another weight; it hides a bad teacher even better.
    """

    name = "basic"

    def label_weight(self) -> float:
        return 1.0


@objectives.register("logit-mse")
class LogitMse(_Logits):
    """Squared error of log-probabilities: (1-a) CE + a MSE(log p_s, log p_t).

    *Do Deep Nets Really Need to be Deep?*, Ba and Caruana, 2014, https://arxiv.org/abs/1312.6184

    The paper compares logits; models here return log-probabilities, which are logits minus a constant that the paper's
    loss would not ignore. The mean is over batch and classes.
    """

    name = "logit-mse"

    def from_teacher(self, lesson: Lesson) -> Terms:
        return {"squared-difference": self.settings.alpha * squared_difference(*lesson.log_probabilities)}


@objectives.register("cosine")
class Cosine(_Logits):
    """Cosine distance of log-probability vectors: (1-a) CE + a (1 - cos(log p_s, log p_t)).

    This turns the idea of *Cosine Normalization: Using Cosine Similarity Instead of Dot Product in Neural Networks*,
    Luo et al., 2018, https://arxiv.org/abs/1702.05870, which is not about distillation, into a loss on outputs. It
    ignores length: (log p) and c (log p) have one direction, but only one of them is a distribution.
    """

    name = "cosine"

    def from_teacher(self, lesson: Lesson) -> Terms:
        return {"cosine-distance": self.settings.alpha * cosine_distance(*lesson.log_probabilities)}
