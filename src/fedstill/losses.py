"""Distillation losses on raw logits and features, for a training loop of one's own.

>>> import torch
>>> student, teacher = torch.tensor([[0.0, 0.0]]), torch.tensor([[0.8, 0.2]]).log() + 5
>>> round(soft_targets(student, teacher, temperature=1.0).item(), 4)  # 0.8 ln 1.6 + 0.2 ln 0.4
0.1927

The functions are the terms that depend on the teacher. The modules are the objectives of `fedstill.distillation`, with
their label terms and weights, and share their code. Modules whose features need a map own it as parameters: pass them
to the optimiser with those of the student, and discard them after training.

Logits are (batch, classes) and are normalised here, so that a constant added to a sample's logits changes nothing.
Features are (batch, width), for example pooled over positions. Flatten the positions of a segmentation into the batch.
Gradients flow to the student and to a module's own parameters, never to the teacher.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from fedstill.core.errors import InputError
from fedstill.core.settings import make_settings
from fedstill.distillation import contrastive, features, logits, relations
from fedstill.distillation import decoupled as decoupling
from fedstill.distillation.objective import Objective
from fedstill.distillation.raw_inputs import (
    as_output,
    check_labels,
    check_temperature,
    comparable,
    log_probabilities_of,
    normalised,
)

__all__ = [
    "CRD",
    "DKD",
    "RKD",
    "AttentionTransfer",
    "CosineLogits",
    "DistillationLoss",
    "FitNet",
    "LogitMSE",
    "SimilarityLoss",
    "SoftTargets",
    "attention",
    "average_teachers",
    "contrast",
    "cosine_distance",
    "decoupled",
    "hint",
    "logit_mse",
    "relational",
    "similarity",
    "soft_targets",
]


def soft_targets(student_logits: Tensor, teacher_logits: Tensor, temperature: float = 2.0) -> Tensor:
    """T^2 KL(teacher || student) of the distributions at temperature T, mean over the batch.

    *Distilling the Knowledge in a Neural Network*, Hinton, Vinyals and Dean, 2015, https://arxiv.org/abs/1503.02531
    """
    check_temperature(temperature)
    return logits.soft_targets(*normalised(student_logits, teacher_logits), temperature)


def logit_mse(student_logits: Tensor, teacher_logits: Tensor) -> Tensor:
    """Mean squared difference of log-probabilities over batch and classes.

    *Do Deep Nets Really Need to be Deep?*, Ba and Caruana, 2014, https://arxiv.org/abs/1312.6184

    The paper compares logits without normalising them.

    >>> half, all_but = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.25, 0.75]]).log()
    >>> round(logit_mse(half, all_but).item(), 4)  # (ln(2)^2 + ln(1.5)^2) / 2
    0.3224
    """
    return logits.squared_difference(*normalised(student_logits, teacher_logits))


def cosine_distance(student_logits: Tensor, teacher_logits: Tensor) -> Tensor:
    """1 - cos of the angle between log-probability vectors, mean over the batch.

    The idea is that of *Cosine Normalization: Using Cosine Similarity Instead of Dot Product in Neural Networks*, Luo
    et al., 2018, https://arxiv.org/abs/1702.05870, which is not about distillation.

    >>> round(cosine_distance(torch.tensor([[0.0, 0.0]]), torch.tensor([[4.0, 4.0]])).item(), 6)  # one distribution
    0.0
    """
    return logits.cosine_distance(*normalised(student_logits, teacher_logits))


def decoupled(
    student_logits: Tensor,
    teacher_logits: Tensor,
    labels: Tensor,
    target: float = 1.0,
    others: float = 8.0,
    temperature: float = 2.0,
) -> Tensor:
    """DKD: `target` times the target-class term plus `others` times the term of all other classes.

    *Decoupled Knowledge Distillation*, Zhao et al., 2022, https://arxiv.org/abs/2203.08679

    >>> student, teacher = torch.tensor([[0.5, 0.25, 0.25]]).log(), torch.tensor([[0.5, 0.4, 0.1]]).log()
    >>> round(decoupled(student, teacher, torch.tensor([0]), temperature=1.0).item(), 4)  # 8 (0.8 ln 1.6 + 0.2 ln 0.4)
    1.542
    """
    check_temperature(temperature)
    ours, theirs = normalised(student_logits, teacher_logits)
    check_labels(labels, ours)
    first = target * decoupling.target_class(ours, theirs, labels, temperature)
    return first + others * decoupling.other_classes(ours, theirs, labels, temperature)


def average_teachers(teacher_logits: Sequence[Tensor]) -> Tensor:
    """The logarithm of the mean probability of several teachers, for any of these losses.

    *Learning from Multiple Teacher Networks*, You et al., 2017, https://doi.org/10.1145/3097983.3098135

    >>> teachers = [torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.1, 0.9]]).log()]
    >>> [round(mean, 4) for mean in average_teachers(teachers).exp()[0].tolist()]
    [0.3, 0.7]
    """
    if not teacher_logits:
        raise InputError("there are no teachers to average: pass the logits of at least one")
    outputs = [as_output(log_probabilities_of(one, "teacher's"), None) for one in teacher_logits]
    return logits.average_teachers(outputs).log_probabilities


def hint(student_features: Tensor, teacher_features: Tensor, normalise: bool = True) -> Tensor:
    """Mean squared difference of features, each vector of length one or as it is.

    *FitNets: Hints for Thin Deep Nets*, Romero et al., 2014, https://arxiv.org/abs/1412.6550

    >>> hint(torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 4.0]])).item()  # (1 + 1) / 2
    1.0
    """
    return features.hint(*comparable(student_features, teacher_features, one_width=True), normalise)


def attention(student_features: Tensor, teacher_features: Tensor) -> Tensor:
    """Mean squared difference of attention: squared activations, each vector of length one.

    *Paying More Attention to Attention*, Zagoruyko and Komodakis, 2016, https://arxiv.org/abs/1612.03928

    >>> attention(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, -5.0]])).item()  # (1 + 1) / 2
    1.0
    """
    return features.attention(*comparable(student_features, teacher_features, one_width=True))


def similarity(student_features: Tensor, teacher_features: Tensor) -> Tensor:
    """Similarity-preserving distillation: the difference of similarities between samples; widths may differ.

    *Similarity-Preserving Knowledge Distillation*, Tung and Mori, 2019, https://arxiv.org/abs/1907.09682

    >>> round(similarity(torch.ones(2, 3), torch.eye(2)).item(), 4)  # rows (1, 1) / sqrt(2) and (1, 0)
    0.2929
    """
    return relations.similarity(*comparable(student_features, teacher_features))


def relational(
    student_features: Tensor, teacher_features: Tensor, distances: float = 1.0, angles: float = 1.0
) -> Tensor:
    """RKD: weighted differences of the distances and of the angles between samples; widths may differ.

    *Relational Knowledge Distillation*, Park et al., 2019, https://arxiv.org/abs/1904.05068

    >>> line, corner = torch.tensor([[0.0], [1.0], [2.0]]), torch.tensor([[0.0, 1.0], [0.0, 0.0], [1.0, 0.0]])
    >>> round(relational(line, corner, distances=0.0).item(), 4)  # cosines -1 and 1 against 0 and 1/sqrt(2)
    0.1953
    """
    sides = comparable(student_features, teacher_features)
    return distances * relations.distances(*sides) + angles * relations.angles(*sides)


def contrast(student_embeddings: Tensor, teacher_embeddings: Tensor, temperature: float = 0.07) -> Tensor:
    """InfoNCE: identify a sample's own teacher embedding in the batch, by cosine / temperature.

    *Contrastive Representation Distillation*, Tian, Krishnan and Isola, 2019, https://arxiv.org/abs/1910.10699

    >>> round(contrast(torch.eye(2), torch.eye(2), temperature=1.0).item(), 4)  # ln(1 + 1/e)
    0.3133
    """
    check_temperature(temperature)
    return contrastive.contrast(*comparable(student_embeddings, teacher_embeddings, one_width=True), temperature)


class DistillationLoss(nn.Module):
    """An objective of Fedstill as a module: the sum of its weighted terms for a batch of raw logits.

    `labels=None` is allowed where the objective reads none. With `label_free=True` it never reads them: the
    cross-entropy is left out, and the teacher is the only source of supervision.
    """

    def __init__(
        self,
        kind: type[Objective],
        label_free: bool,
        widths: tuple[int, int] | None = None,
        **settings: object,
    ) -> None:
        super().__init__()
        given = {name: value for name, value in settings.items() if value is not None}
        objective = kind(make_settings(kind.Options, given, f"loss {type(self).__name__}"))
        self.objective = objective.label_free() if label_free else objective
        if widths is not None and min(widths) < 1:
            raise InputError(f"features have a width of at least one, not {min(widths)}: pass the last axis of each")
        self.adapters = None if widths is None else objective.adapters(*widths)

    def forward(
        self,
        student_logits: Tensor,
        teacher_logits: Tensor,
        labels: Tensor | None = None,
        student_features: Tensor | None = None,
        teacher_features: Tensor | None = None,
    ) -> Tensor:
        """The loss of a batch."""
        terms = self.terms(student_logits, teacher_logits, labels, student_features, teacher_features)
        return torch.stack(list(terms.values())).sum()

    def terms(
        self,
        student_logits: Tensor,
        teacher_logits: Tensor,
        labels: Tensor | None = None,
        student_features: Tensor | None = None,
        teacher_features: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """The weighted terms of a batch by name, for logging; their sum is the loss."""
        ours, theirs = normalised(student_logits, teacher_logits)
        reads = self.objective.reads
        if "labels" in reads:
            check_labels(labels, ours)
        if "features" in reads:
            if student_features is None or teacher_features is None:
                raise InputError(
                    f"loss {type(self).__name__} compares features: pass student_features and teacher_features"
                )
            student_features, teacher_features = comparable(student_features, teacher_features, len(ours))
            self._check_widths(student_features, teacher_features)
        student, teacher = as_output(ours, student_features), as_output(theirs, teacher_features)
        return self.objective.terms(student, teacher, labels, self.adapters)

    def _check_widths(self, *sides: Tensor) -> None:
        if self.adapters is None:
            return
        maps = (self.adapters.student, self.adapters.teacher)
        for name, layer, side in zip(("student", "teacher"), maps, sides, strict=True):
            if isinstance(layer, nn.Linear) and layer.in_features != side.shape[1]:
                raise InputError(
                    f"the {name}'s features are {side.shape[1]} wide, not {layer.in_features}: make"
                    f" {type(self).__name__} with {name}_width={side.shape[1]}"
                )


class SoftTargets(DistillationLoss):
    """Vanilla distillation: (1 - alpha) CE + alpha T^2 KL(teacher || student); see `soft_targets`.

    With `full_labels` the cross-entropy has weight one, as in the objective `basic`. A teacher that is the previous
    student makes it self-distillation, *Born-Again Neural Networks*, Furlanello et al., 2018,
    https://arxiv.org/abs/1805.04770. For several teachers pass `average_teachers(...)`.

    >>> loss = SoftTargets(alpha=0.5, temperature=1.0)
    >>> student, teacher = torch.zeros(1, 2), torch.tensor([[0.8, 0.2]]).log()
    >>> round(loss(student, teacher, torch.tensor([0])).item(), 4)  # (ln 2 + 0.19274) / 2
    0.4429
    """

    def __init__(
        self, alpha: float = 0.5, temperature: float = 2.0, *, full_labels: bool = False, label_free: bool = False
    ) -> None:
        kind = logits.Basic if full_labels else logits.Vanilla
        super().__init__(kind, label_free, alpha=alpha, temperature=temperature)


class LogitMSE(DistillationLoss):
    """(1 - alpha) CE + alpha MSE of log-probabilities; see `logit_mse`."""

    def __init__(self, alpha: float = 0.5, *, label_free: bool = False) -> None:
        super().__init__(logits.LogitMse, label_free, alpha=alpha)


class CosineLogits(DistillationLoss):
    """(1 - alpha) CE + alpha (1 - cos) of log-probabilities; see `cosine_distance`."""

    def __init__(self, alpha: float = 0.5, *, label_free: bool = False) -> None:
        super().__init__(logits.Cosine, label_free, alpha=alpha)


class DKD(DistillationLoss):
    """Decoupled distillation: CE + target TCKD + others NCKD; see `decoupled`.

    Without labels (`label_free`) the target is the teacher's most likely class.

    >>> student, teacher = torch.tensor([[0.5, 0.25, 0.25]]).log(), torch.tensor([[0.5, 0.4, 0.1]]).log()
    >>> round(DKD(temperature=1.0)(student, teacher, torch.tensor([0])).item(), 4)  # ln 2 + 1.542
    2.2351
    """

    def __init__(
        self, target: float = 1.0, others: float = 8.0, temperature: float = 2.0, *, label_free: bool = False
    ) -> None:
        super().__init__(decoupling.Decoupled, label_free, target=target, others=others, temperature=temperature)


Beta = float | Literal["seed", "reference"]


class FitNet(DistillationLoss):
    """FitNets hints: (1 - alpha - beta) CE + alpha T^2 KL + beta MSE(phi(student), teacher); see `hint`.

    phi, a linear map of the student's features to the teacher's width, is learnt with the student. `beta` is a number,
    "seed" (0.5) or "reference", the weight of public implementations.
    """

    def __init__(
        self,
        student_width: int,
        teacher_width: int,
        alpha: float = 0.5,
        beta: Beta = "seed",
        temperature: float = 2.0,
        *,
        normalise: bool | None = None,
        label_free: bool = False,
    ) -> None:
        given = {"alpha": alpha, "beta": beta, "temperature": temperature, "normalise": normalise}
        super().__init__(features.Feature, label_free, (student_width, teacher_width), **given)


class AttentionTransfer(DistillationLoss):
    """(1 - alpha - beta) CE + alpha T^2 KL + beta times the difference of attention; see `attention`, `FitNet`."""

    def __init__(
        self,
        student_width: int,
        teacher_width: int,
        alpha: float = 0.5,
        beta: Beta = "seed",
        temperature: float = 2.0,
        *,
        label_free: bool = False,
    ) -> None:
        given = {"alpha": alpha, "beta": beta, "temperature": temperature}
        super().__init__(features.Attention, label_free, (student_width, teacher_width), **given)


class SimilarityLoss(DistillationLoss):
    """(1 - alpha - beta) CE + alpha T^2 KL + beta times the difference of similarities; see `similarity`."""

    def __init__(
        self, alpha: float = 0.5, beta: Beta = "seed", temperature: float = 2.0, *, label_free: bool = False
    ) -> None:
        super().__init__(relations.SimilarityPreserving, label_free, alpha=alpha, beta=beta, temperature=temperature)


class RKD(DistillationLoss):
    """(1 - alpha - beta) CE + alpha T^2 KL + beta (distances + angles); see `relational`."""

    def __init__(
        self, alpha: float = 0.5, beta: Beta = "seed", temperature: float = 2.0, *, label_free: bool = False
    ) -> None:
        super().__init__(relations.Relational, label_free, alpha=alpha, beta=beta, temperature=temperature)


class CRD(DistillationLoss):
    """Contrastive distillation: (1 - alpha) CE + alpha InfoNCE of learnt embeddings; see `contrast`.

    Each side has a linear head into `width` dimensions, learnt with the student. A `temperature` adds alpha T^2 KL, as
    in the objective `crd+kl`; only then can it be `label_free`, since nothing else would train the classifier.
    """

    def __init__(
        self,
        student_width: int,
        teacher_width: int,
        alpha: float = 0.5,
        contrast_temperature: float = 0.07,
        width: int = 128,
        *,
        temperature: float | None = None,
        label_free: bool = False,
    ) -> None:
        if label_free and temperature is None:
            raise InputError("CRD does not train the classifier without labels: pass temperature=2.0 for soft targets")
        kind = contrastive.Contrastive if temperature is None else contrastive.ContrastiveAndSoft
        given = {"alpha": alpha, "contrast_temperature": contrast_temperature, "width": width}
        super().__init__(kind, label_free, (student_width, teacher_width), **given, temperature=temperature)
