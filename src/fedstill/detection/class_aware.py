"""Class-aware weights: what a model gets wrong counts for more, and so do the classes that many clients get wrong.

*Fed3D: Federated 3D Object Detection*, Dai, Liu, Li and Lin; equations 4 to 8.

    g_i  = 1 - p_i                                       p_i: the probability of object i's true class
    R_i  = B g_i G[y_i] / sum_j g_j G[y_j]               what object i weighs among the B of its batch
    S[o] = mean of g over a client's objects of class o
    G[o] <- ln(1 + O sum_c S_c[o] / sum_o' sum_c S_c[o'])

g is the length of the gradient of cross-entropy at the true class's output; it weighs, and nothing is learnt through
it. R multiplies all terms of an object's loss, and has the mean 1: weights move attention, not the rate. O is the
number of classes, and G starts at 1. What an object is depends on the task: a sample, a point, or a box that was
matched to a query, where every decoder layer has matches, and so weights, of its own.

Where this departs from the paper, or the paper leaves it open:

* The factor O in G is ours: the print is damaged there. Only ratios of G matter.
* S is summed over clients, as printed, so that of two classes that are equally hard the one that more clients of the
  round have weighs more, not less.
* S is taken while a client trains, over the objects of all its steps (in a detector those that the last decoder layer
  was matched to): the paper's own pass over the data afterwards would cost as much as a third of an epoch.
* A class that nobody in a round has keeps its G.
* Where the model is sure of everything (all g are zero) objects weigh by G alone; and all alike where that is zero
  too, since clients were sure of these classes before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedstill.core.dataset import Batch
from fedstill.core.fit import Terms
from fedstill.core.task import Output
from fedstill.tasks.classification import Classification

SUMS, COUNTS = "class-statistics/sum", "class-statistics/count"  # where a reply keeps what it found of each class


def object_weights(shortfall: Tensor, pull: Tensor) -> Tensor:
    """R of a batch's objects from g and their classes' G; the mean of R is 1.

    >>> object_weights(torch.tensor([0.5, 0.25, 0.25]), torch.tensor([1.0, 1.0, 2.0]))  # 3 x (.5, .25, .5) / 1.25
    tensor([1.2000, 0.6000, 1.2000])
    """
    weights = next((one for one in (shortfall * pull, pull) if one.any()), torch.ones_like(pull))
    return len(weights) * weights / weights.sum()


def class_weights(before: Tensor, found: Sequence[Mapping[str, Tensor]]) -> Tensor:
    """G after a round, from the clients' sums of g and numbers of objects by class (below `SUMS` and `COUNTS`).

    A mean of g lies between 0 and 1: what a client claims beyond is cut to that, so that none has more than one voice.

    >>> half, rare = torch.tensor([0.5, 0.5]), torch.tensor([0.3, 0.0])
    >>> replies = [{SUMS: half * 4, COUNTS: torch.tensor([4, 4])}, {SUMS: rare * 2, COUNTS: torch.tensor([2, 0])}]
    >>> class_weights(torch.ones(2), replies).exp() - 1  # 2 x (.5 + .3) / 1.3 and 2 x .5 / 1.3
    tensor([1.2308, 0.7692])
    """
    total, held = torch.zeros_like(before), torch.zeros_like(before, dtype=torch.bool)
    for one in found:
        has = one[COUNTS] > 0
        mean = (one[SUMS].to(before.dtype) / one[COUNTS].clamp(min=1)).clamp(0, 1)
        total += torch.where(has, mean, 0)
        held |= has
    if not total.any():
        return before.clone()
    return torch.where(held, torch.log1p(len(before) * total / total.sum()), before)


class ClassAware:
    """A client's loss with class-aware weights, which counts by class what it saw.

    With `local` objects weigh by their own g, else all alike; `across` is G, and none where classes weigh alike.
    """

    def __init__(self, task: Classification, local: bool, across: Tensor | None) -> None:
        self.task, self.local, self.across = task, local, across
        classes = len(task.classes)
        self.sums = torch.zeros(classes, dtype=torch.float64)
        self.counts = torch.zeros(classes, dtype=torch.int64)
        self.last = torch.zeros(0), torch.zeros(0, dtype=torch.int64)

    def __call__(self, output: Output, batch: Batch, shared: Mapping[str, Tensor]) -> Terms:
        terms = self.task.weighted(output, batch, self.weigh)
        shortfall, labels = self.last  # of the last decoder layer, where there are several
        self.sums += torch.bincount(labels, shortfall.double(), len(self.sums))
        self.counts += torch.bincount(labels, minlength=len(self.counts))
        return terms

    def weigh(self, probability: Tensor, labels: Tensor) -> Tensor:
        """R of these objects."""
        shortfall = 1 - probability.detach()
        self.last = shortfall.cpu(), labels.cpu()
        ones = torch.ones_like(shortfall)
        pull = ones if self.across is None else self.across.to(shortfall)[labels]
        return object_weights(shortfall if self.local else ones, pull)

    def statistics(self) -> dict[str, Tensor]:
        """What was found of each class, as it is sent."""
        return {SUMS: self.sums.clone(), COUNTS: self.counts.clone()}
