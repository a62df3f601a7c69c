"""The coordinate-wise trimmed mean.

*Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates*, Yin et al., 2018,
https://arxiv.org/abs/1803.01498

    w <- the mean of the w_i without the floor(beta n) smallest and as many largest, coordinate by coordinate

n is the number of replies of the round: with fewer than 1 / beta replies nothing is trimmed and the mean is plain. As
long as at most floor(beta n) clients are malicious, every coordinate stays within the range of the others. Running
statistics are trimmed in the same way; all clients have equal weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import torch
from pydantic import Field
from torch import Tensor

from fedstill.core.protocols import Exchange
from fedstill.core.task import Tensors
from fedstill.methods.base import methods
from fedstill.methods.fedavg import FedAvg, ModelSettings
from fedstill.methods.robust import floats, sent, with_robust_buffers, with_robust_recalibration


class TrimmedMeanSettings(ModelSettings):
    beta: float = Field(0.2, ge=0, lt=0.5, description="fraction of the replies removed at each end, per coordinate")


@methods.register("trimmed-mean")
class TrimmedMean(FedAvg):
    """The coordinate-wise trimmed mean: robust against a known fraction of malicious clients."""

    Options = TrimmedMeanSettings
    settings: TrimmedMeanSettings

    def exchanges(self, server: Tensors, round: int) -> Sequence[Exchange]:
        return with_robust_recalibration(super().exchanges(server, round))

    def rule(self, state: Tensors, replies: Sequence[Tensors], weights: Sequence[float]) -> Tensors:
        cut = extremes(self.settings.beta, len(replies))
        means = {name: trimmed_mean(sent(replies, name), cut) for name in floats(state)}
        return with_robust_buffers(state, means, replies)


def extremes(beta: float, count: int) -> int:
    """floor(beta n) in decimal arithmetic: in binary, 0.29 * 100 would round down to 28.

    >>> extremes(0.29, 100), extremes(0.2, 4)
    (29, 0)
    """
    return int(Fraction(str(beta)) * count)


def trimmed_mean(tensors: Sequence[Tensor], cut: int) -> Tensor:
    """The mean without the `cut` smallest and the `cut` largest values of each coordinate.

    >>> trimmed_mean([torch.tensor([value]) for value in (1.0, 9.0, 2.0, 3.0, -90.0)], 1)
    tensor([2.])
    """
    ordered = torch.stack(list(tensors)).sort(dim=0).values
    kept = ordered[cut : len(ordered) - cut]
    return kept.double().mean(dim=0).to(kept.dtype)
