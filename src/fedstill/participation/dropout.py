"""Random dropout of clients: none, independent, bursty (several rounds in a row), or replayed from a file.

A client can drop out before the request, during its work (after a uniformly drawn fraction of it) or after it, with its
reply lost. Empty batteries are not random: they come with a fleet, independently of this choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Self

import numpy as np
import torch
from pydantic import Field, model_validator

from fedstill.core.participation_protocols import DropoutEvent
from fedstill.core.protocols import RoundContext
from fedstill.core.registry import Registry
from fedstill.core.renamed import RENAMED_IN_DROPOUT, check_renamed
from fedstill.core.settings import Settings
from fedstill.core.streams import Streams
from fedstill.core.task import Tensors
from fedstill.participation.policies import Probability

When = Literal["before", "during", "after"]


class Dropout(Settings):
    """Base class of dropout models; settings for the replacement of clients that drop out or have an empty battery."""

    replace: bool = Field(False, description="sample replacement clients, from the same cluster first")
    replacements_can_drop: bool = Field(False, description="whether replacement clients can drop out as well")

    @classmethod
    def __pydantic_init_subclass__(cls, **settings: Any) -> None:
        super().__pydantic_init_subclass__(**settings)
        check_renamed(cls, RENAMED_IN_DROPOUT)

    @property
    def digest(self) -> str:
        """SHA-256 of the input files beside its settings; empty if there are none."""
        return ""

    def check(self, clients: int) -> None:
        """Refuse settings that cannot work with this number of clients."""

    def check_rounds(self, rounds: int) -> None:
        """Refuse settings that cannot work with this number of rounds."""

    def start(self, clients: int, streams: Streams) -> Tensors:
        """The fleet state that it needs, before the first round."""
        return {}

    def computed(self) -> float:
        """How many replies are computed for each sampled client, on average, for estimates; empty batteries aside."""
        return 1.0

    def dropout_events(self, fleet: Tensors, cohort: Sequence[int], context: RoundContext) -> dict[int, DropoutEvent]:
        """Which of these clients drop out in this round, and when."""
        return {}

    def present(self, fleet: Tensors, ids: np.ndarray, context: RoundContext) -> np.ndarray:
        """Which of these clients are present: all except those known to be absent."""
        return ids

    def can_replace(self, fleet: Tensors, ids: np.ndarray, context: RoundContext) -> np.ndarray:
        """Which of these clients can replace others."""
        return ids if self.replacements_can_drop else self.present(fleet, ids, context)

    def next(self, fleet: Tensors, context: RoundContext) -> Tensors:
        """The fleet state at the end of the round."""
        return fleet


dropouts: Registry[type[Dropout]] = Registry("kind of dropout")


@dropouts.register("none")
class NoDropout(Dropout):
    """No random dropout; batteries can still become empty."""


class Chance(Dropout):
    """Base class of models in which clients drop out."""

    when: When = Field(
        "after",
        description="when a client drops out: before the request, during its work, or after it, with its reply",
    )

    @property
    def away(self) -> float:
        """The fraction of sampled clients that drop out."""
        return float(getattr(self, "rate", 0.0))

    def computed(self) -> float:
        """Nothing is computed for a client that drops out before it replied; a replacement does what it would have.

        >>> round(Independent(rate=0.8, when="during").computed(), 9), Independent(rate=0.8, replace=True).computed()
        (0.2, 1.8)
        """
        lost = 0.0 if self.when == "after" else self.away
        return 1 - lost + (self.away if self.replace else 0.0)

    def dropout_event(
        self, client: int, context: RoundContext, when: When | None = None, fraction: float | None = None
    ) -> DropoutEvent:
        """A client's dropout; the finished fraction of its work is drawn unless it is given."""
        when = when or self.when
        if when != "during":
            return DropoutEvent(when)
        return DropoutEvent(when, context.streams.draw("fraction", client).random() if fraction is None else fraction)


@dropouts.register("independent")
class Independent(Chance):
    """Independent dropout: each sampled client drops out with the same probability in every round."""

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
    """Bursty dropout: clients are absent for several consecutive rounds, by a two-state Markov chain per client.

    An absent client returns with probability 1 / length per round; a present one leaves with probability rate / (length
    (1 - rate)), so that the expected absent fraction stays at `rate`. The first round is drawn from that distribution.
    """

    rate: float = Field(..., ge=0, lt=1, description="long-term fraction of clients that are away")
    length: float = Field(..., ge=1, description="mean number of rounds that a client stays away")

    @model_validator(mode="after")
    def _such_a_chain_exists(self) -> Self:
        least = self.rate / (1 - self.rate)
        if self.length < least * (1 - 1e-12):  # tolerance: 0.8 and 4 are valid, though in binary 0.8 / 0.2 exceeds 4
            raise ValueError(
                f"nobody can be away {self.rate:.0%} of the time for {self.length:g} rounds on average: length must be"
                f" at least {least:.3g}"
            )
        return self

    @property
    def leaves(self) -> float:
        """The probability that a present client is absent in the next round."""
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
