"""The coordinate-wise median.

*Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates*, Yin et al., 2018,
https://arxiv.org/abs/1803.01498

    w <- the median of the w_i, coordinate by coordinate (the mean of the middle two for an even number)

All clients have equal weight, however many samples they claim. Running statistics and counters are aggregated by the
median too: their plain mean would remain open to attack (see `robust.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from fedstill.core.protocols import Exchange
from fedstill.core.task import Tensors
from fedstill.methods.base import methods
from fedstill.methods.fedavg import FedAvg, ModelSettings
from fedstill.methods.robust import floats, median, sent, with_robust_buffers, with_robust_recalibration


@methods.register("fedmedian")
class FedMedian(FedAvg):
    """The coordinate-wise median of the clients' models: robust against a minority of malicious clients."""

    Options = ModelSettings

    def exchanges(self, server: Tensors, round: int) -> Sequence[Exchange]:
        return with_robust_recalibration(super().exchanges(server, round))

    def rule(self, state: Tensors, replies: Sequence[Tensors], weights: Sequence[float]) -> Tensors:
        medians = {name: median(sent(replies, name)) for name in floats(state)}
        return with_robust_buffers(state, medians, replies)
