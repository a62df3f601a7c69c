"""Who takes part in a round: everyone, or some at random, among those who can be reached.

A policy is its own settings; whatever it has to remember is fleet state, which the run keeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from fedstill.core.errors import InputError
from fedstill.core.protocols import Fate, Profile, Turn
from fedstill.core.registry import Registry
from fedstill.core.settings import Settings
from fedstill.core.streams import Streams
from fedstill.core.task import Tensors

Probability = Annotated[float, Field(ge=0, le=1)]


class Policy(Settings):
    """Availability and dropout, which every policy has; subclasses choose among the available."""

    draws_evenly: ClassVar[bool] = False  # True: whoever can be reached has the same chance to be chosen

    availability: Probability | tuple[Probability, ...] = Field(
        1.0, description="chance that a client can be reached in a round; one number, or one per client"
    )
    dropout: Probability = Field(0.0, description="chance that a chosen client is lost during the round")
    dropout_when: Literal["before", "after"] = Field("after", description="before it is asked, or after its work")

    @property
    def even(self) -> bool:
        """Whether every client has the same chance to take part in a round."""
        same = not isinstance(self.availability, tuple) or len(set(self.availability)) == 1
        return self.draws_evenly and same

    def check(self, clients: int) -> None:
        """Refuse what cannot work with so many clients."""
        if isinstance(self.availability, tuple) and len(self.availability) != clients:
            raise InputError(
                f"participation.availability lists {len(self.availability)} probabilities for {clients} clients:"
                " give one number, or one per client"
            )

    def cohort(self, clients: int) -> int:
        """How many clients are asked in a round if all can be reached."""
        return clients

    def start(self, profiles: Sequence[Profile], streams: Streams) -> Tensors:
        return {}

    def select(self, fleet: Tensors, profiles: Sequence[Profile], turn: Turn) -> Sequence[int]:
        """The cohort of this round, by client id."""
        # One draw for the whole fleet, indexed by client: a client's luck does not depend on who else is asked.
        luck = turn.streams.draw("availability").random(len(profiles))
        available = np.flatnonzero(luck < np.asarray(self.availability))
        return sorted(int(client) for client in self.choose(available, len(profiles), turn))

    def choose(self, available: np.ndarray, clients: int, turn: Turn) -> np.ndarray:
        """Whom to ask of those that can be reached."""
        return available

    def fate(self, fleet: Tensors, who: Profile, turn: Turn) -> Fate | None:
        if self.dropout and turn.streams.draw("dropout", who.id).random() < self.dropout:
            return self.dropout_when
        return None


policies: Registry[type[Policy]] = Registry("participation policy")


@policies.register("everyone")
class Everyone(Policy):
    """All clients that can be reached."""

    draws_evenly: ClassVar[bool] = True


@policies.register("random")
class Random(Policy):
    """A random fraction or number of clients per round."""

    draws_evenly: ClassVar[bool] = True

    fraction: float | None = Field(None, gt=0, le=1, description="of all clients; at least one is asked")
    number: int | None = Field(None, ge=1, description="of clients per round")

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.fraction is None) == (self.number is None):
            raise ValueError("give either fraction or number")
        return self

    def check(self, clients: int) -> None:
        super().check(clients)
        if self.number is not None and self.number > clients:
            raise InputError(f"participation.number is {self.number}, but there are only {clients} clients")

    def choose(self, available: np.ndarray, clients: int, turn: Turn) -> np.ndarray:
        return turn.streams.draw("select").choice(available, min(self.cohort(clients), len(available)), replace=False)

    def cohort(self, clients: int) -> int:
        return self.number if self.number is not None else max(1, int((self.fraction or 1.0) * clients + 0.5))
