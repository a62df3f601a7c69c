"""What experiments can add to participation: devices that pay for their work, and clusters of clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from fedstill.core.protocols import Exchange, Profile, RoundContext, Survey
from fedstill.core.records import RecordSection
from fedstill.core.streams import Streams
from fedstill.core.task import Tensors


class RoundBill(Protocol):
    """What one round costs the devices."""

    def charge(self, who: Profile, down: int, work: float, up: int) -> str | None:
        """Charge the client's battery; where it becomes empty on the way, the sentence that records it."""
        ...

    def empty(self, client: int) -> bool:
        """Whether the client's battery is empty."""
        ...

    def now(self) -> Tensors:
        """The fleet with the charges that are left."""
        ...

    def end(self, fleet: Tensors, sampled: set[int], context: RoundContext) -> Tensors:
        """The fleet after the rest between two rounds."""
        ...

    def record(self, after: Tensors) -> RecordSection:
        """The section `fleet` of the round's record."""
        ...


class Devices(Protocol):
    """Clients' devices: fleet state, and what their work costs them."""

    def start(self, clients: int, streams: Streams) -> Tensors: ...

    def bill(self, fleet: Tensors, costs: Mapping[str, float]) -> RoundBill:
        """A round's bill; `costs` are floating-point operations of a pass, by architecture."""
        ...


class ClusterModel(Protocol):
    """Clients clustered by statistics of their data."""

    @property
    def needs(self) -> frozenset[str]: ...

    def check(self, clients: int) -> None: ...

    def start(self, clients: int, classes: int) -> Tensors: ...

    def exchange(self, classes: int) -> Exchange: ...

    def survey(self, fleet: Tensors, available: np.ndarray, classes: int, context: RoundContext) -> Survey | None: ...
