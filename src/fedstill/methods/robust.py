"""What the robust methods share: every reply counts alike, and every kind of state goes through a robust rule.

A plain mean can be moved anywhere by one client, and so can a mean of BatchNorm's running statistics, however well the
weights are guarded: a model with sound weights and a poisoned variance is a broken model. So in these methods

* clients count alike, however many samples they claim;
* running statistics go through a robust rule too: the method's own, or else the coordinate-wise median. These rules
  interpolate, so that a variance cannot become negative as it can behind a server's optimiser;
* counters take the middle value instead of the largest;
* with `buffers: recalibrate` each client's sums give statistics of its own, of which the median is taken: robust, but
  no longer what pooled data would give, since the spread between clients is not in it.
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


def with_robust_buffers(state: Tensors, ruled: Tensors, replies: Sequence[Reply]) -> Tensors:
    """The server's next state from what the method's rule gave; running statistics not in it take the median."""
    rest = [name for name in named(state, STATISTICS) if name not in ruled]
    statistics = {name: median(sent(replies, name)) for name in rest}
    counters = {name: middle(sent(replies, name)) for name in named(state, MODEL + COUNTERS)}
    return {**state, **ruled, **statistics, **counters}


def with_robust_recalibration(exchanges: Sequence[Exchange]) -> Sequence[Exchange]:
    """A method's exchanges: the training as it is, and every recalibration after it by the median."""
    training, *recalibrations = exchanges
    return (training, *(RobustRecalibration(one) for one in recalibrations))


class RobustRecalibration(WrappedExchange):
    """Recalibration by the median of the statistics that each client's own sums give."""

    def aggregate(self, state: Tensors, replies: Sequence[Reply], context: RoundContext) -> Tensors:
        alone = [self.inner.aggregate(state, [reply], context) for reply in replies]
        return {**state, **{name: median([one[name] for one in alone]) for name in named(state, STATISTICS)}}


def named(state: Tensors, *kinds: str) -> list[str]:
    """The names of some kinds in the server's state, in order."""
    return [name for name in sorted(state) if name.startswith(kinds)]


def floats(state: Tensors) -> list[str]:
    """The names of the model's weights and running statistics."""
    return named(state, WEIGHTS, STATISTICS)


def sent(replies: Sequence[Reply], name: str) -> list[Tensor]:
    """What each client sent under a name."""
    return [reply.message[name] for reply in replies]


def median(tensors: Sequence[Tensor]) -> Tensor:
    """Coordinate by coordinate; of an even number the mean of the middle two.

    >>> median([torch.tensor([1.0, 8.0]), torch.tensor([2.0, 4.0]), torch.tensor([9.0, 6.0]), torch.tensor([4.0, 0.0])])
    tensor([3., 5.])
    """
    ordered = torch.stack(list(tensors)).sort(dim=0).values
    count = len(ordered)
    return (ordered[(count - 1) // 2] + ordered[count // 2]) / 2


def middle(counters: Sequence[Tensor]) -> Tensor:
    """The middle of whole numbers; of an even number the larger of the middle two.

    >>> middle([torch.tensor(3), torch.tensor(2**62), torch.tensor(5), torch.tensor(4)])
    tensor(5)
    """
    ordered = torch.stack(list(counters)).sort(dim=0).values
    return ordered[len(ordered) // 2]
