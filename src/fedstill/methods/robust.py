"""Shared parts of the robust methods: equal weights for all replies, and a robust rule for every kind of state.

A single client can move a plain mean arbitrarily. The same holds for a mean of BatchNorm running statistics, however
well the weights are protected: a model with correct weights and a poisoned variance is unusable. In these methods:

* all clients have equal weight, however many samples they claim;
* running statistics are aggregated by a robust rule too: the method's own, or else the coordinate-wise median. These
  rules interpolate, so a variance cannot become negative as it can with a server optimiser;
* counters take the median instead of the maximum;
* with `buffers: recalibrate` the statistics are computed from each client's sums and aggregated by the median. This is
  robust, but differs from pooled data, since it omits the variance between clients.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedstill.core.kinds import BUFFERS, COUNTERS
from fedstill.core.protocols import Exchange, Reply, RoundContext
from fedstill.core.task import Tensors
from fedstill.methods.base import MODEL, WEIGHTS
from fedstill.methods.wrappers.wrapper import WrappedExchange

STATISTICS = MODEL + BUFFERS


def with_robust_buffers(state: Tensors, ruled: Tensors, replies: Sequence[Tensors]) -> Tensors:
    """The next server state from the result of the method's rule; running statistics not in it take the median."""
    rest = [name for name in named(state, STATISTICS) if name not in ruled]
    statistics = {name: median(sent(replies, name)) for name in rest}
    counters = {name: middle(sent(replies, name)) for name in named(state, MODEL + COUNTERS)}
    return {**state, **ruled, **statistics, **counters}


def with_robust_recalibration(exchanges: Sequence[Exchange]) -> Sequence[Exchange]:
    """A method's exchanges: training unchanged, and every recalibration after it aggregated by the median."""
    training, *recalibrations = exchanges
    return (training, *(RobustRecalibration(one) for one in recalibrations))


class RobustRecalibration(WrappedExchange):
    """Recalibration by the median of the statistics computed from each client's sums."""

    def aggregate(self, state: Tensors, replies: Sequence[Reply], context: RoundContext) -> Tensors:
        alone = [self.inner.aggregate(state, [reply], context) for reply in replies]
        return {**state, **{name: median([one[name] for one in alone]) for name in named(state, STATISTICS)}}


def named(state: Tensors, *kinds: str) -> list[str]:
    """The sorted names of some kinds of tensors in the server state."""
    return [name for name in sorted(state) if name.startswith(kinds)]


def floats(state: Tensors) -> list[str]:
    """The names of the model's weights and running statistics."""
    return named(state, WEIGHTS, STATISTICS)


def sent(replies: Sequence[Tensors], name: str) -> list[Tensor]:
    """The tensors that the clients sent under one name."""
    return [reply[name] for reply in replies]


def median(tensors: Sequence[Tensor]) -> Tensor:
    """The coordinate-wise median; for an even number of values, the mean of the middle two.

    >>> median([torch.tensor([1.0, 8.0]), torch.tensor([2.0, 4.0]), torch.tensor([9.0, 6.0]), torch.tensor([4.0, 0.0])])
    tensor([3., 5.])
    """
    ordered = torch.stack(list(tensors)).sort(dim=0).values
    count = len(ordered)
    return (ordered[(count - 1) // 2] + ordered[count // 2]) / 2


def middle(counters: Sequence[Tensor]) -> Tensor:
    """The median of integers; for an even number of values, the larger of the middle two.

    >>> middle([torch.tensor(3), torch.tensor(2**62), torch.tensor(5), torch.tensor(4)])
    tensor(5)
    """
    ordered = torch.stack(list(counters)).sort(dim=0).values
    return ordered[len(ordered) // 2]
