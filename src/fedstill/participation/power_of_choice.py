"""Power-of-choice: sample the clients with the highest local loss.

*Client Selection in Federated Learning: Convergence Analysis and Power-of-Choice Selection Strategies*, Cho, Wang and
Joshi, 2020, https://arxiv.org/abs/2010.01243

    A <- d candidates, drawn without putting back, with chances by samples
    cohort <- those of A with the highest losses

`losses: poll` is the paper's pow-d: candidates are sent the shared model and report its loss on their data. `losses:
last` is its rpow-d: the loss that each client reported when it last took part, clients without a report first; it costs
no communication and works with any method. Candidates can also be drawn uniformly, and weighted by battery, history and
link, which the paper does not do.

The selection is biased by design: the candidate with the lowest loss of d may never be sampled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field

from fedstill.core.participation_protocols import Survey
from fedstill.core.protocols import Exchange, Profile, RoundContext
from fedstill.core.streams import Streams
from fedstill.core.task import Tensors
from fedstill.participation.policies import policies
from fedstill.participation.surveys import SharedLoss
from fedstill.participation.weighted import Weighted, check_candidates


@policies.register("power-of-choice")
class PowerOfChoice(Weighted):
    """Power-of-choice: of d random candidates, the clients with the highest local loss."""

    reads_losses: ClassVar[bool] = True

    candidates: int | None = Field(None, ge=1, description="d: number of candidates; unset: twice the cohort")
    draw: Literal["samples", "evenly"] = Field(
        "samples", description="probability of a candidate: proportional to its samples, or equal"
    )
    losses: Literal["last", "poll"] = Field(
        "last",
        description="last: the loss that each client reported last; poll: the loss of the shared model, measured now",
    )
    former_values: ClassVar[Mapping[str, Mapping[str, str]]] = {"losses": {"ask": "poll"}}

    @property
    def needs(self) -> frozenset[str]:
        return super().needs | ({"shared-model"} if self.losses == "poll" else set())

    def check(self, clients: int) -> None:
        super().check(clients)
        check_candidates(self.candidates, self.cohort(clients), clients)

    def start(self, profiles: Sequence[Profile], streams: Streams) -> Tensors:
        state = {**super().start(profiles, streams), "loss": torch.full((len(profiles),), torch.nan).double()}
        if self.draw == "samples":
            state["samples"] = torch.tensor([who.samples for who in profiles], dtype=torch.int64)
        return state

    def weights(self, fleet: Tensors, ids: np.ndarray) -> np.ndarray:
        weights = super().weights(fleet, ids)
        # A client without samples has no loss, but weights are never zero.
        return weights * np.maximum(fleet["samples"].numpy()[ids], 1) if self.draw == "samples" else weights

    def exchanges(self, classes: int, models: Mapping[str, Tensors]) -> Sequence[Exchange]:
        return (SharedLoss(models),) if self.losses == "poll" else ()

    def survey(
        self, fleet: Tensors, eligible: np.ndarray, models: Mapping[str, Tensors], classes: int, context: RoundContext
    ) -> Survey | None:
        if self.losses == "last":
            return None
        return Survey(SharedLoss(models), np.sort(self.shortlist(eligible, fleet, context.clients, context)).tolist())

    def choose(self, candidates: np.ndarray, fleet: Tensors, clients: int, context: RoundContext) -> np.ndarray:
        # The survey stores losses of its candidates only; those without an accepted reply come last.
        surveyed = self.losses == "poll"
        short = (self.in_order if surveyed else self.shortlist)(candidates, fleet, clients, context)
        losses = np.nan_to_num(fleet["loss"].numpy()[short], nan=-np.inf if surveyed else np.inf)
        return np.sort(short[np.argsort(-losses, kind="stable")[: self.cohort(clients)]])

    def shortlist(self, ids: np.ndarray, fleet: Tensors, clients: int, context: RoundContext) -> np.ndarray:
        """The candidates, in the order drawn."""
        number = self.candidates or 2 * self.cohort(clients)
        return self.in_order(ids, fleet, clients, context)[:number]
