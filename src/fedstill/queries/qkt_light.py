"""Query-based knowledge transfer whose first phase does not depend on the query.

*Query-based Knowledge Transfer for Heterogeneous Learning Environments*, Alballa et al., 2025,
https://arxiv.org/abs/2504.09205, section 3.3 and appendix A.4

The first phase learns from all peers and all classes, whatever the query; only the second phase, in which the head is
trained alone, depends on the query. So the first phase can run once for all clients: on the server with unlabelled
samples, or on a volunteer, the client with most samples, with its own data. Alternatively each student runs it itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from pydantic import Field
from torch import nn

from fedstill.core.dataset import Dataset, Proxy, SharedSamples
from fedstill.core.errors import InputError
from fedstill.core.fit import Trained
from fedstill.core.kinds import state_of
from fedstill.core.message import Message, part, under
from fedstill.core.protocols import Abstain, Client, Exchange, Meter, Profile, Reply, RoundContext, Shape
from fedstill.core.settings import Settings
from fedstill.core.streams import Streams
from fedstill.core.task import Task, Tensors
from fedstill.core.training import Training
from fedstill.methods.base import MODEL, WORK_EGRESS, methods, same_as, work_expected, work_report
from fedstill.methods.local_only import START
from fedstill.queries.peers import OFFER_EGRESS, PEERS, SAMPLES, PeerMethod, Transfer, built, offering, own_model
from fedstill.queries.qkt import QKTSettings, QueryTransfer, for_epochs
from fedstill.queries.transfer_loss import TERMS, QueryLesson, Watch, learn, query_loss

COMMON = "common/"  # the model of the first phase, if it is shared


class LightSettings(QKTSettings):
    head_epochs: int | None = Field(
        5, ge=1, description="epochs of training the head alone; none: as many as for the whole model"
    )
    first_phase: Literal["student", "server", "volunteer"] = Field(
        "student",
        description="who learns from all peers: each client; the server, on `proxy`; or one client for all",
    )
    proxy: str | None = Field(
        None, description="data on which the server distils: a data set, without labels, or patches:IMAGE"
    )


@methods.register("qkt-light", behaviour=2)
class QKTLight(PeerMethod):
    """QKT Light: only the head is trained for the query; the first phase is query-independent and can be shared."""

    Options = LightSettings
    settings: LightSettings
    wants = PeerMethod.wants | {"shared samples"}
    terms = TERMS

    def __init__(
        self, settings: Settings, task: Task, training: Training, inputs: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(settings, task, training, inputs)
        self.proxy: Proxy | None = (inputs or {}).get("shared samples")

    @property
    def tunes(self) -> bool:
        return self.settings.tune

    def check(self) -> None:
        super().check()
        if self.settings.first_phase != "student" and len(self.task.architectures) > 1:
            raise InputError(
                f"one model for all is learnt by the {self.settings.first_phase}, and clients have"
                f" {' and '.join(self.task.architectures)}: set first_phase to student, or give all one model"
            )

    @classmethod
    def shared_samples(cls, settings: Any) -> SharedSamples | None:
        return SharedSamples.named(settings.proxy) if settings.first_phase == "server" else None

    def __getstate__(self) -> dict[str, Any]:
        """Without the proxy data: only the server uses them."""
        return {name: value for name, value in self.__dict__.items() if name != "proxy"}

    def exchanges(self, server: Tensors, round: int) -> Sequence[Exchange]:
        between = (Volunteer(self),) if self.settings.first_phase == "volunteer" else ()
        return (self, *between, LightTransfer(self))

    def learn(
        self, client: Client, peers: Mapping[int, nn.Module], context: RoundContext, watch: Watch | None = None
    ) -> Trained:
        def first(transfer: QueryTransfer, model: nn.Module, teachers: list[nn.Module]) -> Trained:
            if common := part(client.state, COMMON):  # the first phase has been done for all
                model.load_state_dict(client.task.build(client.profile.architecture, common).state_dict())
                return Trained(0, {})
            return self.from_all(transfer.client, model, list(peers.values()), transfer.watch)

        return QueryTransfer(client, self.settings, self.training, watch).learn(peers, first)

    def from_all(
        self, client: Client, model: nn.Module, peers: Sequence[nn.Module], watch: Watch | None = None
    ) -> Trained:
        """The first phase on a client: the whole model learns from all peers."""
        lesson = self.common_lesson(client.task, peers, client.data, client.streams.at("whole"), client.meter)
        return learn(model, replace(lesson, watch=watch))

    def by_server(self, state: Tensors, context: RoundContext) -> Tensors:
        """The first phase on the server: from the clients' initial model towards all peers' outputs on proxy data."""
        architecture = self.task.architectures[0]
        model = self.task.build(architecture, part(state, f"{START}{architecture}/"))
        peers = list(built(self.task, part(state, PEERS), self.as_program).values())
        if peers:  # none is offered if a round is only described
            assert self.proxy is not None
            streams = context.streams.at("whole")
            learn(model, self.common_lesson(self.task, peers, self.proxy.data, streams, Meter()))
        return under(COMMON, state_of(model))

    def common_lesson(
        self, task: Task, peers: Sequence[nn.Module], data: Dataset, streams: Streams, meter: Meter
    ) -> QueryLesson:
        """All peers' outputs for all classes, on the given data."""
        settings = self.settings
        loss = query_loss(torch.ones(len(self.task.classes)), settings.alpha, settings.temperature)
        training = for_epochs(self.training, settings.transfer_epochs)
        return QueryLesson(task, peers, data, loss, training, streams, meter, settings.temperature)


class LightTransfer(Transfer):
    """The transfer with the shared model of the first phase, if there is one."""

    method: QKTLight

    def prepare(self, state: Tensors, context: RoundContext) -> Tensors:
        by_server = self.method.settings.first_phase == "server"
        return {**state, **self.method.by_server(state, context)} if by_server else state

    def request(self, state: Tensors, who: Profile, context: RoundContext) -> Message | None:
        offered = super().request(state, who, context)
        assert offered is not None
        return Message({**offered, **under(COMMON, part(state, COMMON))})

    def reply(self, client: Client, request: Message, context: RoundContext) -> Message:
        client.state = {**client.state, **under(COMMON, request.part(COMMON))}
        reply = super().reply(client, request, context)
        client.state = {name: tensor for name, tensor in client.state.items() if not name.startswith(COMMON)}
        return reply

    def aggregate(self, state: Tensors, replies: Sequence[Reply], context: RoundContext) -> Tensors:
        kept = super().aggregate(state, replies, context)
        return {name: tensor for name, tensor in kept.items() if not name.startswith(COMMON)}


class Volunteer(Exchange):
    """The client with most samples runs the first phase for all clients."""

    name = "volunteer"
    egress = (*OFFER_EGRESS, *WORK_EGRESS)
    min_replies = 1

    def __init__(self, method: QKTLight) -> None:
        self.method = method

    def request(self, state: Tensors, who: Profile, context: RoundContext) -> Message | None:
        sizes = ((-int(state[f"{PEERS}{number}/{SAMPLES}"]), number) for number in offering(state))
        _, largest = min(sizes, default=(0, who.id))  # nothing is offered if a round is only described
        return Transfer(self.method).request(state, who, context) if who.id == largest else None

    def reply(self, client: Client, request: Message, context: RoundContext) -> Message:
        peers = built(self.method.task, request.part(PEERS), self.method.as_program)
        if not peers:
            raise Abstain("nobody else offers a model to learn from")
        model = client.task.build(client.profile.architecture, own_model(client))
        trained = self.method.from_all(client, model, list(peers.values()))
        return Message({**under(MODEL, state_of(model)), **work_report(trained, TERMS)})

    def expect(self, state: Tensors, who: Profile, request: Message) -> Mapping[str, tuple[Shape, torch.dtype]]:
        return {**same_as(under(MODEL, part(state, f"{START}{who.architecture}/"))), **work_expected(TERMS)}

    def aggregate(self, state: Tensors, replies: Sequence[Reply], context: RoundContext) -> Tensors:
        return {**state, **under(COMMON, replies[0].message.part(MODEL))}
