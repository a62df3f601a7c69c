"""An ensemble of the peers' models, without any training.

*Ensemble Methods in Machine Learning*, Dietterich, 2000, https://doi.org/10.1007/3-540-45014-9_1

    p(c | x) = mean over members t of p_t(c | x)        (a client's own model, and all that the others offer)

A client stores every model it receives, and evaluates all of them for each prediction: storage and work grow with the
number of members. It offers the model it trained alone; the received models do not change it.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from fedstill.core.fit import Trained
from fedstill.core.message import Message, part, under
from fedstill.core.protocols import Client, Exchange, RoundContext
from fedstill.core.task import Tensors
from fedstill.methods.base import MODEL, methods, work_report
from fedstill.queries.peers import BEFORE, PEERS, PeerMethod, PeerSettings, Transfer, built, own_model
from fedstill.queries.vote import Vote

MEMBERS = "member/"  # member/ID/...: prefix of the received models in a client's state


@methods.register("ensemble")
class Ensemble(PeerMethod):
    """An ensemble at every client: the mean prediction of its own model and all models that its peers offer."""

    Options = PeerSettings

    def exchanges(self, server: Tensors, round: int) -> Sequence[Exchange]:
        return (self, Gathering(self))

    def personalise(self, server: Tensors, state: Tensors) -> Tensors | None:
        return {name: tensor for name, tensor in state.items() if name.startswith((MODEL, MEMBERS))} or None

    def assemble(self, architecture: str, personal: Tensors) -> nn.Module:
        own = self.task.build(architecture, part(personal, MODEL))
        return Vote([own, *built(self.task, part(personal, MEMBERS), self.as_program).values()])


class Gathering(Transfer):
    """The exchange in which a client stores the received models, replacing earlier ones."""

    def reply(self, client: Client, request: Message, context: RoundContext) -> Message:
        own = own_model(client)
        kept = {name: tensor for name, tensor in client.state.items() if not name.startswith(MEMBERS)}
        client.state = {**kept, **under(BEFORE, own), **under(MEMBERS, request.part(PEERS))}
        return Message(work_report(Trained(0, {})))
