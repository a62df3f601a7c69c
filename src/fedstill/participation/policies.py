"""Client sampling: all available clients, or a random subset of them.

A policy is its own settings; anything it has to remember is fleet state, which the run stores. In a round its methods
are called in this order: the clients that can be reached (`available`), those of them that may be sampled (`eligible`),
the exchange that has to come first (`survey`), and the sample (`choose`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Self

import numpy as np
from pydantic import Field, model_validator

from fedstill.core.errors import InputError
from fedstill.core.participation_protocols import Survey
from fedstill.core.protocols import Exchange, Profile, RoundContext
from fedstill.core.registry import Registry
from fedstill.core.settings import Settings
from fedstill.core.streams import Streams
from fedstill.core.task import Tensors

Probability = Annotated[float, Field(ge=0, le=1)]


class Policy(Settings):
    """Base class with availability; subclasses sample among the available clients."""

    reads_losses: ClassVar[bool] = False  # True: samples by the losses that clients report
    draws_evenly: ClassVar[bool] = False  # True: all clients that can be reached are sampled with equal probability

    availability: Probability | tuple[Probability, ...] = Field(
        1.0, description="probability that a client can be reached in a round; one number, or one per client"
    )

    @property
    def even(self) -> bool:
        """Whether all clients take part in a round with the same probability."""
        same = not isinstance(self.availability, tuple) or len(set(self.availability)) == 1
        return self.draws_evenly and same

    @property
    def needs(self) -> frozenset[str]:
        """What an experiment must provide: "fleet" (batteries, links), "clusters", "labels", "shared-model"."""
        return frozenset()

    def check(self, clients: int) -> None:
        """Refuse settings that cannot work with this number of clients."""
        if isinstance(self.availability, tuple) and len(self.availability) != clients:
            raise InputError(
                f"participation.availability lists {len(self.availability)} probabilities for {clients} clients:"
                " give one number, or one per client"
            )

    def cohort(self, clients: int) -> int:
        """The number of clients sampled in a round if all can be reached."""
        return clients

    def start(self, profiles: Sequence[Profile], streams: Streams) -> Tensors:
        """The fleet state that the policy needs, before the first round."""
        return {}

    def available(self, clients: int, context: RoundContext) -> np.ndarray:
        """The ids of the clients that can be reached in this round."""
        # One draw for the whole fleet, indexed by client: a client's availability does not depend on who else is
        # sampled.
        luck = context.streams.draw("availability").random(clients)
        return np.flatnonzero(luck < np.asarray(self.availability))

    def eligible(self, fleet: Tensors, available: np.ndarray) -> np.ndarray:
        """Which of these clients may be sampled, also as replacements."""
        return available

    def weights(self, fleet: Tensors, ids: np.ndarray) -> np.ndarray:
        """The relative sampling weights of these clients; none is zero."""
        return np.ones(len(ids))

    def exchanges(self, classes: int, models: Mapping[str, Tensors]) -> Sequence[Exchange]:
        """The exchanges of its surveys, for manifests and for sites."""
        return ()

    def survey(
        self, fleet: Tensors, eligible: np.ndarray, models: Mapping[str, Tensors], classes: int, context: RoundContext
    ) -> Survey | None:
        """The exchange that sampling needs first, and its clients; `models` are the shared models."""
        return None

    def choose(self, candidates: np.ndarray, fleet: Tensors, clients: int, context: RoundContext) -> np.ndarray:
        """Sample this round's clients among the eligible ones, sorted by id."""
        return candidates


policies: Registry[type[Policy]] = Registry("participation policy")


@policies.register("everyone")
class Everyone(Policy):
    """All clients that can be reached."""

    draws_evenly: ClassVar[bool] = True


class Sized(Policy):
    """A policy that samples a fraction or a number of clients."""

    fraction: float | None = Field(None, gt=0, le=1, description="fraction of clients to sample, at least one client")
    number: int | None = Field(None, ge=1, description="number of clients to sample per round")

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.fraction is None) == (self.number is None):
            raise ValueError("give either fraction or number")
        return self

    def check(self, clients: int) -> None:
        super().check(clients)
        if self.number is not None and self.number > clients:
            raise InputError(f"participation.number is {self.number}, but there are only {clients} clients")

    def cohort(self, clients: int) -> int:
        return self.number if self.number is not None else max(1, int((self.fraction or 1.0) * clients + 0.5))


@policies.register("random")
class Random(Sized):
    """A uniformly random fraction or number of clients per round."""

    draws_evenly: ClassVar[bool] = True

    def choose(self, candidates: np.ndarray, fleet: Tensors, clients: int, context: RoundContext) -> np.ndarray:
        number = min(self.cohort(clients), len(candidates))
        return np.sort(context.streams.draw("select").choice(candidates, number, replace=False))
