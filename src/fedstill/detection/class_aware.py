"""Class-aware weights: misclassified objects weigh more, and so do classes that many clients misclassify.

*Fed3D: Federated 3D Object Detection*, Dai, Liu, Li and Lin; equations 4 to 8.

    g_i  = 1 - p_i                                       p_i: the probability of object i's true class
    R_i  = B g_i G[y_i] / sum_j g_j G[y_j]               what object i weighs among the B of its batch
    S[o] = mean of g over a client's objects of class o
    G[o] <- ln(1 + O sum_c S_c[o] / sum_o' sum_c S_c[o'])

g is the norm of the gradient of cross-entropy at the true class's output; it is a weight, without a gradient of its
own. R multiplies all terms of an object's loss, and has mean 1: weights redistribute the loss, not its scale. O is the
number of classes, and G starts at ln 2, which is what equal statistics of all classes give. An object is a sample, a
point, or a box matched to a query, depending on the task; every decoder layer has its own matches and weights.

Differences from the paper, and choices where the paper is ambiguous:

* The factor O in G is ours: the printed equation is damaged there. Only ratios of G matter.
* The paper's start of G is unknown; 1 (`initial_weight: one`) would let a class that is absent in the first round weigh
  more than those that are present: 1.34 times as much where one of ten is absent and the others are equally hard.
* S is summed over clients, as printed, so that of two equally hard classes the one that more clients of the round have
  weighs more, not less.
* S is computed while a client trains, over the objects of all its steps (in a detector those matched to the last
  decoder layer): the paper's separate pass over the data afterwards would cost as much as a third of an epoch.
* A class that no client in a round has keeps its G.
* If the model is certain of everything (all g are zero) objects weigh by G alone; and equally if that is zero too,
  since clients were certain of these classes before.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedstill.core.dataset import Batch
from fedstill.core.fit import Terms
from fedstill.core.task import Output, Tensors
from fedstill.tasks.classification import Classification

SUMS, COUNTS = "class-statistics/sum", "class-statistics/count"  # prefixes of the class statistics in a reply
MEANS, HOLDERS = "class-statistics/mean", "class-statistics/holders"  # of what is added up of them over clients


def object_weights(shortfall: Tensor, pull: Tensor) -> Tensor:
    """R of a batch's objects from g and their classes' G; the mean of R is 1.

    >>> object_weights(torch.tensor([0.5, 0.25, 0.25]), torch.tensor([1.0, 1.0, 2.0]))  # 3 x (.5, .25, .5) / 1.25
    tensor([1.2000, 0.6000, 1.2000])
    """
    weights = next((one for one in (shortfall * pull, pull) if one.any()), torch.ones_like(pull))
    return len(weights) * weights / weights.sum()


EVEN = math.log(2.0)  # G of every class where statistics are equal


def class_weights(before: Tensor, found: Sequence[Mapping[str, Tensor]]) -> Tensor:
    """G after a round, from the clients' sums of g and numbers of objects by class (under `SUMS` and `COUNTS`).

    A mean of g lies between 0 and 1: larger claims of a client are clipped to that, which bounds its influence.

    >>> half, rare = torch.tensor([0.5, 0.5]), torch.tensor([0.3, 0.0])
    >>> replies = [{SUMS: half * 4, COUNTS: torch.tensor([4, 4])}, {SUMS: rare * 2, COUNTS: torch.tensor([2, 0])}]
    >>> class_weights(torch.ones(2), replies).exp() - 1  # 2 x (.5 + .3) / 1.3 and 2 x .5 / 1.3
    tensor([1.2308, 0.7692])
    """
    total, held = torch.zeros_like(before), torch.zeros_like(before, dtype=torch.bool)
    for one in found:
        shares = class_shares({name: one[name].to(before.dtype) if name == SUMS else one[name] for name in one})
        total += shares[MEANS]
        held |= shares[HOLDERS] > 0
    return weights_of_shares(before, total, held)


def class_shares(found: Tensors) -> dict[str, Tensor]:
    """What one client's class statistics add to the sums over clients: its mean error by class, and what it has."""
    has = found[COUNTS] > 0
    mean = (found[SUMS] / found[COUNTS].clamp(min=1)).clamp(0, 1)
    return {MEANS: torch.where(has, mean, 0), HOLDERS: has.long()}


def weights_of_shares(before: Tensor, total: Tensor, held: Tensor) -> Tensor:
    """The class weights from the sum of mean errors by class, and which classes any client has."""
    if not total.any():
        return before.clone()
    return torch.where(held, torch.log1p(len(before) * total / total.sum()), before)


class ClassAware:
    """A client's loss with class-aware weights, which accumulates class statistics.

    With `local` objects weigh by their own g, else equally; `across` is G, or None for equal class weights.
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
        """The class statistics, as they are sent."""
        return {SUMS: self.sums.clone(), COUNTS: self.counts.clone()}
