"""Several models combined: a weighted mean of their probabilities, or a mixture weighted by their confidence."""

from __future__ import annotations

from collections.abc import Sequence
from math import log

import torch
from torch import Tensor, nn


class Vote(nn.Module):
    """The log of the weighted mean of its members' probabilities, and the features of the first member.

    Weights are normalised to sum to one; without weights all members count equally. Members may differ in architecture.
    """

    weights: Tensor

    def __init__(self, members: Sequence[nn.Module], weights: Tensor | None = None) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        weights = torch.ones(len(members)) if weights is None else weights
        self.register_buffer("weights", (weights.double() / weights.double().sum()).float())

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        said = [member(inputs) for member in self.members]
        words = torch.stack([log_probabilities for log_probabilities, _ in said])
        return torch.logsumexp(words + self.weights.log()[:, None, None], dim=0), said[0][1]


class ConfidentVote(nn.Module):
    """The log of a mixture of its members' probabilities, over some classes only, and the features of the first member.

    A member is weighted, sample by sample, by its confidence (see `mixture`); the mask has one flag for each class.
    """

    mask: Tensor

    def __init__(self, members: Sequence[nn.Module], mask: Tensor) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.register_buffer("mask", mask.clone())

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        said = [member(inputs) for member in self.members]
        mixed = mixture(torch.stack([log_probabilities for log_probabilities, _ in said]))
        kept = (mixed * self.mask).clamp(min=torch.finfo(mixed.dtype).tiny)
        return (kept / kept.sum(dim=1, keepdim=True)).log(), said[0][1]


def mixture(log_probabilities: Tensor) -> Tensor:
    """Members' probabilities (members x samples x classes) weighted by 1 - H / log C, H the entropy of a member's own.

    Weights are normalised over members; members that are all undecided count equally.

    >>> sure, undecided = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.5, 0.5]])
    >>> mixture(torch.stack([sure, undecided]).log()).round(decimals=5).tolist()
    [[1.0, 0.0]]
    >>> mixture(torch.stack([undecided, undecided]).log()).tolist()
    [[0.5, 0.5]]
    """
    probabilities = log_probabilities.exp()
    entropy: Tensor = torch.special.entr(probabilities).sum(dim=2)
    weights = (1 - entropy / log(max(2, log_probabilities.shape[2]))).clamp(min=1e-6)
    return (probabilities * (weights / weights.sum(dim=0))[:, :, None]).sum(dim=0)
