"""The coordinate-wise median.

*Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates*, Yin et al., 2018,
https://arxiv.org/abs/1803.01498

    w <- the median of the w_i, coordinate by coordinate (the mean of the middle two for an even number)

Clients count alike, however many samples they claim.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedstill.core.protocols import Reply, Turn
from fedstill.core.task import Tensors
from fedstill.methods.base import methods
from fedstill.methods.fedavg import FedAvg, ModelSettings


@methods.register("fedmedian")
class FedMedian(FedAvg):
    """The median of the clients' models, coordinate by coordinate: robust against a minority."""

    Options = ModelSettings

    def merge(self, state: Tensors, replies: Sequence[Reply], turn: Turn) -> Tensors:
        merged = super().merge(state, replies, turn)
        medians = {name: median([reply.message[name] for reply in replies]) for name in self.moving(state)}
        return {**merged, **medians}

    def weights(self, replies: Sequence[Reply]) -> list[float]:
        return [1.0 for _ in replies]


def median(tensors: Sequence[Tensor]) -> Tensor:
    """Coordinate by coordinate; of an even number the mean of the middle two.

    >>> median([torch.tensor([1.0, 8.0]), torch.tensor([2.0, 4.0]), torch.tensor([9.0, 6.0]), torch.tensor([4.0, 0.0])])
    tensor([3., 5.])
    """
    ordered = torch.stack(list(tensors)).sort(dim=0).values
    count = len(ordered)
    return (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
