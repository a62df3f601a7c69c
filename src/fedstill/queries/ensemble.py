"""An ensemble of peers' models, without any learning.

*Ensemble Methods in Machine Learning*, Dietterich, 2000, https://doi.org/10.1007/3-540-45014-9_1

    p(c | x) = mean over members t of p_t(c | x)        (a client's own model, and all that the others offer)

A client keeps every model it is given, and asks all of them whenever it is asked: storage and work grow with the
members. It offers the model it trained alone; what it is given changes nothing of that.
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

MEMBERS = "member/"  # member/ID/...: where a client's state keeps the models that it was given


@methods.register("ensemble")
class Ensemble(PeerMethod):
    """Every client asks its own model and all that its peers offer, and takes the mean of what they say."""

    Options = PeerSettings

    def exchanges(self, server: Tensors, round: int) -> Sequence[Exchange]:
        return (self, Gathering(self))

    def personalise(self, server: Tensors, state: Tensors) -> Tensors | None:
        return {name: tensor for name, tensor in state.items() if name.startswith((MODEL, MEMBERS))} or None

    def assemble(self, architecture: str, personal: Tensors) -> nn.Module:
        own = self.task.build(architecture, part(personal, MODEL))
        return Vote([own, *built(self.task, part(personal, MEMBERS)).values()])


class Gathering(Transfer):
    """The way back: a client keeps what it is given, instead of what it was given before."""

    def reply(self, client: Client, request: Message, context: RoundContext) -> Message:
        own = own_model(client)
        kept = {name: tensor for name, tensor in client.state.items() if not name.startswith(MEMBERS)}
        client.state = {**kept, **under(BEFORE, own), **under(MEMBERS, request.part(PEERS))}
        return Message(work_report(Trained(0, {})))
