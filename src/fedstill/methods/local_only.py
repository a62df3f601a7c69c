"""Local-only training: what each client can do without a federation.

Every client starts from the same model and trains on its own data; no weights leave it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from fedstill.core.kinds import state_of
from fedstill.core.message import Message, part, under
from fedstill.core.protocols import Client, Method, Profile, Reply, Shape, Turn
from fedstill.core.streams import Streams
from fedstill.core.task import Tensors
from fedstill.methods.base import WORK_EGRESS, methods, train, work_expected, work_report


@methods.register("local-only")
class LocalOnly(Method):
    """Every client trains alone; nothing but metrics leaves it."""

    name = "train"
    egress = WORK_EGRESS
    needs = frozenset({"labels"})
    personal = True

    def start(self, streams: Streams) -> Tensors:
        return {
            name: tensor
            for architecture in self.task.architectures
            for name, tensor in under(
                f"start/{architecture}/",
                state_of(self.task.build(architecture, streams=streams.at("model", architecture))),
            ).items()
        }

    def request(self, state: Tensors, who: Profile, turn: Turn) -> Message | None:
        first_contact = who.since is None
        return Message(under("model/", part(state, f"start/{who.architecture}/")) if first_contact else {})

    def reply(self, client: Client, request: Message, turn: Turn) -> Message:
        own = part(client.state, "model/") or request.part("model/")
        model = client.task.build(client.profile.architecture, own)
        trained = train(client, model, self.training, turn)
        client.state = {**client.state, **under("model/", state_of(model))}
        return Message(work_report(trained))

    def expect(self, state: Tensors, who: Profile, request: Message) -> Mapping[str, tuple[Shape, torch.dtype]]:
        return work_expected(self.task.terms)

    def merge(self, state: Tensors, replies: Sequence[Reply], turn: Turn) -> Tensors:
        return state

    def personalise(self, server: Tensors, state: Tensors) -> Tensors | None:
        return part(state, "model/") or None
