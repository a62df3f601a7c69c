"""Interfaces of participation: who takes part in a round, who drops out, what it costs a device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

from fedstill.core.protocols import Exchange, Profile, RoundContext
from fedstill.core.streams import Streams
from fedstill.core.task import Tensors


class DropoutEvent(NamedTuple):
    """When a client drops out: before the request, during its work (after which fraction of it), or after it."""

    when: Literal["before", "during", "after"]
    fraction: float = 1.0


class Survey(NamedTuple):
    """An exchange with some clients before a cohort is sampled; its state is the fleet."""

    exchange: Exchange
    clients: Sequence[int]


class RoundParticipation(Protocol):
    """Participation in one round: who is sampled, who drops out, what it costs. It is discarded with the round."""

    fleet: Tensors  # as the round found it, and with what surveys add

    def surveys(self, models: Mapping[str, Tensors]) -> Iterable[Survey]:
        """The exchanges to run, one after the other, before sampling; `models` are those that are shared."""
        ...

    def cohort(self) -> Sequence[int]:
        """Sample this round's clients: their ids, sorted."""
        ...

    def dropout_events(self, clients: Sequence[int], replacing: bool = False) -> Mapping[int, DropoutEvent]:
        """Which of these clients drop out, and when; replacement clients may be exempt."""
        ...

    def expected_work(self, who: Profile) -> float:
        """The work, in sample-passes, of a client that does not drop out."""
        ...

    def charge(self, who: Profile, down: int, work: float, up: int) -> str | None:
        """Charge the client's battery; where it becomes empty on the way, the sentence that records it."""
        ...

    def battery_empty(self, client: int) -> bool:
        """Whether a client's battery is empty."""
        ...

    def replacements(self, failed: Sequence[int]) -> Mapping[int, int]:
        """Replacement clients by failed client, without those that were replaced before; none replaces two."""
        ...

    def end(self, finished: Iterable[int], losses: Mapping[int, float]) -> Tensors:
        """The fleet after the round: clients sampled and finished, reported losses, batteries, idle devices' rest."""
        ...

    def record(self) -> Mapping[str, Any]:
        """Fields that it adds to the round's record."""
        ...


class Participation(Protocol):
    """Who takes part. Fleet state is named tensors; sees profiles, never data."""

    def start(self, profiles: Sequence[Profile], streams: Streams) -> Tensors: ...

    def begin_round(self, fleet: Tensors, profiles: Sequence[Profile], context: RoundContext) -> RoundParticipation:
        """Participation in one round of this fleet."""
        ...
