"""Interfaces for extensions of participation: devices with energy costs, and clusters of clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from fedstill.core.participation_protocols import Survey
from fedstill.core.protocols import Exchange, Profile, RoundContext
from fedstill.core.records import RecordSection
from fedstill.core.streams import Streams
from fedstill.core.task import Tensors


class RoundBill(Protocol):
    """The energy costs of one round."""

    def charge(self, who: Profile, down: int, work: float, up: int) -> str | None:
        """Charge the client's battery; if it becomes empty on the way, return the sentence for the record."""
        ...

    def empty(self, client: int) -> bool:
        """Whether the client's battery is empty."""
        ...

    def now(self) -> Tensors:
        """The fleet state with the remaining charges."""
        ...

    def end(self, fleet: Tensors, sampled: set[int], context: RoundContext) -> Tensors:
        """The fleet state after the idle time between two rounds."""
        ...

    def record(self, after: Tensors) -> RecordSection:
        """The section `fleet` of the round's record."""
        ...


class Devices(Protocol):
    """The clients' devices: fleet state and energy costs."""

    def start(self, clients: int, streams: Streams) -> Tensors: ...

    def bill(self, fleet: Tensors, costs: Mapping[str, float]) -> RoundBill:
        """The costs of a round; `costs` are floating-point operations per forward pass, by architecture."""
        ...


class ClusterModel(Protocol):
    """A clustering of clients by statistics of their data."""

    @property
    def needs(self) -> frozenset[str]: ...

    def check(self, clients: int) -> None: ...

    def start(self, clients: int, classes: int) -> Tensors: ...

    def exchange(self, classes: int) -> Exchange: ...

    def survey(self, fleet: Tensors, available: np.ndarray, classes: int, context: RoundContext) -> Survey | None: ...
