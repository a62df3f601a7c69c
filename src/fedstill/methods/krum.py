"""Krum and Multi-Krum.

*Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent*, Blanchard et al., 2017,
https://arxiv.org/abs/1703.02757

    s(i) = the sum of ||w_i - w_j||^2 over the n - f - 2 clients j that are nearest to i
    w   <- the w_i with the smallest s(i)                      (Krum)
    w   <- the mean of the m models with the smallest s(i)     (Multi-Krum, m = n - f unless `keep` is less)

f is the assumed number of malicious clients among a round's n replies. The paper's guarantee needs n >= 2f + 3. If
clients fail and fewer replies than that remain, the round uses the coordinate-wise median instead, which only needs an
honest majority. If f is not set, it is the largest number that the round's replies allow: (n - 3) / 2, rounded down.
Ties are broken by the smaller client id.

Running statistics come from the selected clients, so a client with harmless weights must not be able to contribute
poisoned statistics. If the model has running statistics they are scored in the same way, separately from the weights
because their scales differ: each of the two scores is divided by its median over the round, and the two are added. A
selected client must then score well in both. Without running statistics, or with `buffers: as-parameters`, this is the
paper's score. Counters, which are part of no distance, take the median of all replies.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor

from fedstill.core.errors import InputError
from fedstill.core.kinds import average
from fedstill.core.protocols import Exchange
from fedstill.core.task import Tensors
from fedstill.methods.base import methods
from fedstill.methods.fedavg import FedAvg, ModelSettings
from fedstill.methods.robust import floats, median, sent, with_robust_buffers, with_robust_recalibration


class KrumSettings(ModelSettings):
    attackers: int | None = Field(
        None, ge=0, description="f: number of malicious replies to tolerate; unset: as many as possible"
    )


class MultiKrumSettings(KrumSettings):
    keep: int | None = Field(None, ge=1, description="m: number of models to average, at most n - f; unset: n - f")


@methods.register("krum")
class Krum(FedAvg):
    """Krum: the one client model that is closest to its nearest neighbours."""

    Options = KrumSettings
    settings: KrumSettings

    def check_cohort(self, clients: int) -> None:
        check_attackers(self.settings.attackers, clients)

    def exchanges(self, server: Tensors, round: int) -> Sequence[Exchange]:
        return with_robust_recalibration(super().exchanges(server, round))

    def rule(self, state: Tensors, replies: Sequence[Tensors], weights: Sequence[float]) -> Tensors:
        nearest = closest(state, replies, self.settings.attackers, self.moving(state), keep=1)
        return with_robust_buffers(state, nearest, replies)


@methods.register("multi-krum")
class MultiKrum(FedAvg):
    """Multi-Krum: the mean of the client models that are closest to their nearest neighbours."""

    Options = MultiKrumSettings
    settings: MultiKrumSettings

    def check_cohort(self, clients: int) -> None:
        check_attackers(self.settings.attackers, clients)

    def exchanges(self, server: Tensors, round: int) -> Sequence[Exchange]:
        return with_robust_recalibration(super().exchanges(server, round))

    def rule(self, state: Tensors, replies: Sequence[Tensors], weights: Sequence[float]) -> Tensors:
        nearest = closest(state, replies, self.settings.attackers, self.moving(state), self.settings.keep)
        return with_robust_buffers(state, nearest, replies)


def check_attackers(attackers: int | None, clients: int) -> None:
    """Refuse more attackers than a round of this many clients tolerates: n >= 2f + 3."""
    if attackers is not None and clients < 2 * attackers + 3:
        raise InputError(
            f"with attackers={attackers} a round needs {2 * attackers + 3} clients or more, and there are"
            f" {clients}: ask for fewer attackers, or leave them out"
        )


def closest(
    state: Tensors, replies: Sequence[Tensors], attackers: int | None, weights: Sequence[str], keep: int | None
) -> Tensors:
    """The mean of the `keep` models with the smallest scores (None: n - f); with too few replies, the median of all.

    Replies are in the order of client ids: of equal scores the first counts as the smaller.
    """
    count = len(replies)
    attackers = (count - 3) // 2 if attackers is None else attackers
    if count < 3 or count < 2 * attackers + 3:
        return {name: median(sent(replies, name)) for name in floats(state)}
    scores = scored(state, replies, attackers, weights)
    ranked = sorted(range(count), key=scores.__getitem__)
    most = count - attackers
    kept = sorted(ranked[: most if keep is None else min(keep, most)])
    models = [{name: replies[client][name] for name in floats(state)} for client in kept]
    return average(models, [1.0 for _ in kept])


def scored(state: Tensors, replies: Sequence[Tensors], attackers: int, weights: Sequence[str]) -> list[float]:
    """Each client's score: of its weights, plus that of its running statistics if the model has any."""
    statistics = [name for name in floats(state) if name not in weights]
    found = [krum_scores(squared_distances(replies, names), attackers) for names in (weights, statistics) if names]
    total = found[0] if len(found) == 1 else torch.stack([relative(each) for each in found]).sum(dim=0)
    return [float(score) for score in total]


def squared_distances(models: Sequence[Tensors], names: Sequence[str]) -> Tensor:
    """The squared distances between all pairs of models, over some tensors; equal models have distance zero.

    >>> squared_distances([{"w": torch.tensor([0.0])}, {"w": torch.tensor([3.0])}], ["w"]).tolist()
    [[0.0, 9.0], [9.0, 0.0]]
    """
    count = len(models)
    total = torch.zeros(count, count, dtype=torch.float64)
    for name in names:
        rows = torch.stack([model[name] for model in models]).double().reshape(count, -1)
        for one in range(count - 1):
            away = (rows[one + 1 :] - rows[one]).square().sum(dim=1)
            total[one, one + 1 :] += away
            total[one + 1 :, one] += away
    return total


def krum_scores(distances: Tensor, attackers: int) -> Tensor:
    """The sum of each client's n - f - 2 smallest squared distances to others."""
    others = distances.clone().fill_diagonal_(torch.inf)  # a client is not its own neighbour
    return others.sort(dim=1).values[:, : len(distances) - attackers - 2].sum(dim=1)


def relative(scores: Tensor) -> Tensor:
    """Scores divided by their median, which an honest majority determines.

    >>> relative(torch.tensor([1.0, 0.0, 2.0, 4.0, 8.0])).tolist()
    [0.5, 0.0, 1.0, 2.0, 4.0]
    """
    return torch.where(scores == 0, 0.0, scores / scores.median())
