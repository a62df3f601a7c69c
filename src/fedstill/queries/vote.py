"""Several models combined: a weighted mean of their probabilities."""

from __future__ import annotations

from collections.abc import Sequence

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
