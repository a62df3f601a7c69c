"""FedNova.

*Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization*, Wang et al., 2020,
https://arxiv.org/abs/2007.07481

    a_i     = [tau_i - rho (1 - rho^tau_i) / (1 - rho)] / (1 - rho)     SGD with momentum rho; tau_i if rho = 0
    tau_eff = sum_i p_i a_i                                             p_i = n_i / n
    w      <- w - tau_eff sum_i p_i (w - w_i) / a_i

tau_i is the number of steps actually taken. a_i assumes that momentum starts from zero in each round; there is no such
formula for Adam, for an optimiser of the user's own or for a local update, for which a_i = tau_i; the steps of a local
update are the batches that it was given. If all clients take the same number of steps this is FedAvg, so compare it
only with FedAvg under the same local optimiser.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import torch

from fedstill.core.errors import InputError
from fedstill.core.message import Message, part, under
from fedstill.core.protocols import RoundContext, Shape
from fedstill.core.sums import Summand, Sums
from fedstill.core.task import Tensors
from fedstill.methods.base import MODEL, methods
from fedstill.methods.fedavg import FedAvg

WORK = "work"  # the name of a_i in sums


@methods.register("fednova")
class FedNova(FedAvg):
    """Normalised averaging: updates are divided by the client's local steps to remove objective inconsistency."""

    reads_steps = True
    from_sums = True
    defaults: ClassVar = {"training": {"optimiser": "sgd", "momentum": 0.9}}

    def check(self) -> None:
        if self.training.keep_optimiser and self.momentum:
            raise InputError(
                "fednova normalises by steps whose momentum starts from zero in each round: set"
                " training.keep_optimiser=false, or training.momentum=0"
            )

    @property
    def momentum(self) -> float:
        """rho of local training, as far as it is known."""
        known = self.training.optimiser == "sgd" and self.training.local_update is None
        return self.training.momentum if known else 0.0

    def rule(self, state: Tensors, replies: Sequence[Tensors], weights: Sequence[float]) -> Tensors:
        merged = super().rule(state, replies, weights)
        shares = [weight / sum(weights) for weight in weights]
        # At least one step: a client that reports zero steps would cause a division by zero.
        work = [self.normaliser(max(1, int(reply["steps"]))) for reply in replies]
        effective = sum(share * amount for share, amount in zip(shares, work, strict=True))
        moved = {}
        for name in self.moving(state):
            start = state[name].double()
            steps = [share * (start - r[name]) / a for share, a, r in zip(shares, work, replies, strict=True)]
            moved[name] = (start - effective * torch.stack(steps).sum(dim=0)).to(state[name].dtype)
        return {**merged, **moved}

    @property
    def summed(self) -> Sequence[Summand] | None:  # type: ignore[override]
        mean = super().summed
        return None if mean is None else (*mean, Summand(WORK, "work"))

    def contribution(self, request: Message, reply: Message) -> Tensors:
        """Weights are divided by a_i before they are summed, and a_i is summed beside them."""
        amount = self.normaliser(max(1, int(reply["steps"])))
        moving = set(self.moving(request))
        updates = super().contribution(request, reply)
        scaled = {name: change / amount if name in moving else change for name, change in updates.items()}
        return {**scaled, WORK: torch.tensor(amount, dtype=torch.float64)}

    def sum_shapes(self, state: Tensors, expected: Mapping[str, tuple[Shape, torch.dtype]]) -> dict[str, Shape]:
        return {**super().sum_shapes(state, expected), WORK: ()}

    def finish(self, state: Tensors, sums: Sums, context: RoundContext) -> Tensors:
        effective, moving = float(sums.mean(WORK)), set(self.moving(state))
        totals = {name: total * effective if name in moving else total for name, total in sums.totals.items()}
        mean = self.mean_reply(state, replace(sums, totals=totals)).message
        return {**state, **under(MODEL, part(mean, MODEL))}

    def normaliser(self, steps: int) -> float:
        """The normaliser a_i after this many steps.

        For two steps with rho = 0.9 the first gradient moves the weights by 1 + 0.9 and the second by 1, in total 2.9.
        """
        rho = self.momentum
        return (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)
