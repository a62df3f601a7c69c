"""What cures for dropout share: they stand between the replies of a round and the method's own merge."""

from __future__ import annotations

from fedstill.core.protocols import Exchange
from fedstill.core.task import Tensors
from fedstill.methods.base import MODEL, WEIGHTS
from fedstill.methods.fedavg import FedAvg
from fedstill.methods.wrappers.wrapper import Wrapped


class Mitigated(Wrapped):
    """A method whose merge is told something else than what came back; clients notice nothing.

    Only the exchange in which models come back is cured. What may follow in a round (recalibration, fine-tuning) has no
    model in its replies, and is the method's own.
    """

    inner: FedAvg

    def wrap(self, exchange: Exchange) -> Exchange:
        return self if exchange is self.inner else exchange

    def shared_weights(self, state: Tensors) -> list[str]:
        """The names of the weights that everybody starts from and sends back; FedBN's own layers are not among them."""
        own: frozenset[str] = getattr(self.inner, "local", frozenset())
        return [name for name in sorted(state) if name.startswith(WEIGHTS) and name.removeprefix(MODEL) not in own]
