"""Dropout by chance: of nobody, of each client with some probability, for stretches of rounds, or from a file.

A client can drop out before the request, during its work (after a fraction of it, drawn evenly) or after it, with its
reply. Empty batteries are not a matter of chance: they come with a fleet, whatever is chosen here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Self

import numpy as np
import torch
from pydantic import Field, model_validator

from fedstill.core.protocols import DropoutEvent, RoundContext
from fedstill.core.registry import Registry
from fedstill.core.renamed import RENAMED_IN_DROPOUT, check_renamed
from fedstill.core.settings import Settings
from fedstill.core.streams import Streams
from fedstill.core.task import Tensors
from fedstill.participation.policies import Probability

When = Literal["before", "during", "after"]


class Dropout(Settings):
    """What all kinds have in common: whether clients that drop out or have an empty battery are replaced."""

    replace: bool = Field(False, description="sample replacement clients, from the same cluster first")
    replacements_can_drop: bool = Field(False, description="whether replacement clients can drop out as well")

    @classmethod
    def __pydantic_init_subclass__(cls, **settings: Any) -> None:
        super().__pydantic_init_subclass__(**settings)
        check_renamed(cls, RENAMED_IN_DROPOUT)

    @property
    def digest(self) -> str:
        """SHA-256 of what it reads beside its settings; empty: nothing."""
        return ""

    def check(self, clients: int) -> None:
        """Refuse what cannot work with so many clients."""

    def start(self, clients: int, streams: Streams) -> Tensors:
        """What the fleet's state needs for it, before the first round."""
        return {}

    def dropout_events(self, fleet: Tensors, cohort: Sequence[int], context: RoundContext) -> dict[int, DropoutEvent]:
        """Which of these clients drop out in this round, and when."""
        return {}

    def present(self, fleet: Tensors, ids: np.ndarray, context: RoundContext) -> np.ndarray:
        """Which of these clients are present: all but those known to be away."""
        return ids

    def can_replace(self, fleet: Tensors, ids: np.ndarray, context: RoundContext) -> np.ndarray:
        """Which of these clients can replace others."""
        return ids if self.replacements_can_drop else self.present(fleet, ids, context)

    def next(self, fleet: Tensors, context: RoundContext) -> Tensors:
        """The fleet at the end of the round."""
        return fleet


dropouts: Registry[type[Dropout]] = Registry("kind of dropout")


@dropouts.register("none")
class NoDropout(Dropout):
    """Nobody drops out by chance; batteries can still become empty."""


class Chance(Dropout):
    """Kinds in which clients drop out."""

    when: When = Field(
        "after",
        description="when a client drops out: before the request, during its work, or after it, with its reply",
    )

    def dropout_event(
        self, client: int, context: RoundContext, when: When | None = None, fraction: float | None = None
    ) -> DropoutEvent:
        """A client's dropout; the finished fraction of its work is drawn, unless it is known."""
        when = when or self.when
        if when != "during":
            return DropoutEvent(when)
        return DropoutEvent(when, context.streams.draw("fraction", client).random() if fraction is None else fraction)


@dropouts.register("independent")
class Independent(Chance):
    """Each sampled client with the same chance, whatever happened before."""

    rate: Probability = Field(..., description="probability that a sampled client drops out, or fraction of the cohort")
    of_cohort: bool = Field(False, description="drop exactly this fraction of the cohort, rounded, in every round")

    def dropout_events(self, fleet: Tensors, cohort: Sequence[int], context: RoundContext) -> dict[int, DropoutEvent]:
        luck = {client: context.streams.draw("dropout", client).random() for client in cohort}
        if self.of_cohort:
            dropped = sorted(cohort, key=lambda client: (luck[client], client))[: int(self.rate * len(cohort) + 0.5)]
        else:
            dropped = [client for client in cohort if luck[client] < self.rate]
        return {client: self.dropout_event(client, context) for client in sorted(dropped)}


@dropouts.register("bursty")
class Bursty(Chance):
    """Clients are away for several rounds on end: a Markov chain with two states for each of them.

    Who is away comes back with chance 1 / length a round; who is there leaves with chance rate / (length (1 - rate)),
    so that the share away stays at `rate`. The first round is drawn from that share.
    """

    rate: float = Field(..., ge=0, lt=1, description="long-term fraction of clients that are away")
    length: float = Field(..., ge=1, description="mean number of rounds that a client stays away")

    @model_validator(mode="after")
    def _such_a_chain_exists(self) -> Self:
        least = self.rate / (1 - self.rate)
        if self.length < least * (1 - 1e-12):  # 0.8 and 4 are fine, though in binary 0.8 / 0.2 is above 4
            raise ValueError(
                f"nobody can be away {self.rate:.0%} of the time for {self.length:g} rounds on average: length must be"
                f" at least {least:.3g}"
            )
        return self

    @property
    def leaves(self) -> float:
        """The chance that somebody who is there is away in the next round."""
        return min(1.0, self.rate / (1 - self.rate) / self.length)

    def start(self, clients: int, streams: Streams) -> Tensors:
        return {"away": torch.from_numpy(streams.draw("away").random(clients) < self.rate)}

    def dropout_events(self, fleet: Tensors, cohort: Sequence[int], context: RoundContext) -> dict[int, DropoutEvent]:
        return {client: self.dropout_event(client, context) for client in sorted(cohort) if fleet["away"][client]}

    def present(self, fleet: Tensors, ids: np.ndarray, context: RoundContext) -> np.ndarray:
        there: np.ndarray = ids[~fleet["away"].numpy()[ids]]
        return there

    def next(self, fleet: Tensors, context: RoundContext) -> Tensors:
        away = fleet["away"].numpy()
        luck = context.streams.draw("away").random(len(away))
        return {**fleet, "away": torch.from_numpy(luck < np.where(away, 1 - 1 / self.length, self.leaves))}
