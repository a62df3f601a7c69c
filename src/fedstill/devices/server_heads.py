"""The server's parts of split distillation, and one teacher in place of several."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedstill.core.task import Tensors
from fedstill.models.classifier import Classifier, part_state


def head_place(number: int) -> str:
    """The prefix of a head in the server's state; none for the first, whose weights are those of the shared model."""
    return f"heads/{number}/" if number else ""


class ServerHead:
    """One of the server's second parts g, with the moments of its Adam."""

    def __init__(self, model: Classifier, place: str, moments: Tensors) -> None:
        self.model, self.place, self.moments = model, place, moments
        self.second = model.parts()[1]
        self.side = Classifier(nn.Identity(), self.second, 0)

    def state(self) -> Tensors:
        return part_state(self.model, self.second)


def teacher_weights(teachers: Tensor, labels: Tensor, by: str) -> Tensor:
    """The weight of each teacher for each sample: equal, or by the probability that it gives the sample's label.

    >>> teachers = torch.tensor([[[0.6, 0.4]], [[0.2, 0.8]]]).log()  # two teachers, one sample
    >>> teacher_weights(teachers, torch.tensor([0]), "labels")
    tensor([[0.7500],
            [0.2500]])
    """
    if by == "uniform":
        return torch.full(teachers.shape[:2], 1 / len(teachers))
    return teachers.gather(2, labels.expand(len(teachers), -1).unsqueeze(2)).squeeze(2).softmax(dim=0)


def mean_teacher(teachers: Tensor, weights: Tensor, temperature: float) -> Tensor:
    """Logits of one teacher in place of several: at temperature T, the weighted mean of their distributions p_k.

    sum_k w_k KL(p_k || q) = KL(sum_k w_k p_k || q) + a constant, so that a student q learns from this teacher exactly
    what it would learn from all of them, and logits of one are sent.

    >>> teachers = torch.tensor([[[0.9, 0.1]], [[0.5, 0.5]]]).log()
    >>> mean_teacher(teachers, torch.tensor([[0.75], [0.25]]), 1.0).exp()  # 0.675 + 0.125
    tensor([[0.8000, 0.2000]])
    """
    softened = (teachers / temperature).log_softmax(dim=2)
    return temperature * torch.logsumexp(softened + weights.log().unsqueeze(2), dim=0)
