"""The coordinate-wise median.

*Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates*, Yin et al., 2018,
https://arxiv.org/abs/1803.01498

    w <- the median of the w_i, coordinate by coordinate (the mean of the middle two for an even number)

Clients count alike, however many samples they claim. Running statistics and counters take the median too: a plain mean
of them would leave a door open (see `robust.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from fedstill.core.protocols import Reply
from fedstill.core.task import Tensors
from fedstill.methods.base import methods
from fedstill.methods.robust import Robust, floats, median, sent


@methods.register("fedmedian")
class FedMedian(Robust):
    """The median of the clients' models, coordinate by coordinate: robust against a minority."""

    def rule(self, state: Tensors, replies: Sequence[Reply]) -> Tensors:
        return {name: median(sent(replies, name)) for name in floats(state)}
