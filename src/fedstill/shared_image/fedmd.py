"""Distillation at the clients.

*FedMD: Heterogenous Federated Learning via Model Distillation*, Li and Wang, 2019, https://arxiv.org/abs/1910.03581

    z    <- sum_i n_i z_i / sum_i n_i          (the server: the mean of what the clients said last time)
    w_i  <- distilled towards softmax(z)       (each client i: "digest"), then trained on its own data ("revisit")
    z_i  <- what w_i says of the proxy samples

Every client keeps a model of its own, of whatever architecture; only logits cross the wire, both ways.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedstill.core.dataset import SharedSamples, Told
from fedstill.core.kinds import state_of
from fedstill.core.message import Message, part, under
from fedstill.core.protocols import Client, Profile, Reply, RoundContext, Shape
from fedstill.core.settings import Settings
from fedstill.core.streams import Streams
from fedstill.core.task import Tensors
from fedstill.methods.base import LOGITS, MODEL, WORK_EGRESS, methods, train, work_expected, work_report
from fedstill.shared_image.proxy_selection import draw_uniformly
from fedstill.shared_image.shared_samples import (
    LOGITS_EGRESS,
    SELECTED,
    LogitMethod,
    LogitSettings,
    ProxySettings,
    StepSettings,
    on_logits,
    towards,
)

CONSENSUS = "consensus"


class FedMDSettings(ProxySettings, StepSettings, LogitSettings):
    steps: int = Field(100, ge=1, description="of each client towards the consensus, before it trains on its own data")


@methods.register("fedmd")
class FedMD(LogitMethod):
    """Clients with models of their own learn from the mean of what all say of shared samples."""

    name = "train"
    egress = (LOGITS_EGRESS, *WORK_EGRESS)
    Options: ClassVar[type[Settings]] = FedMDSettings
    settings: FedMDSettings
    personal = True

    @classmethod
    def shared_samples(cls, settings: Any) -> SharedSamples:
        return SharedSamples.named(settings.proxy)

    def start(self, streams: Streams) -> Tensors:
        return {SELECTED: draw_uniformly(len(self.proxy.data), self.size, streams)}

    def request(self, state: Tensors, who: Profile, context: RoundContext) -> Message | None:
        heard = {CONSENSUS: state[CONSENSUS]} if CONSENSUS in state else {}
        return Message({**self.asked(state[SELECTED]), **heard})

    def reply(self, client: Client, request: Message, context: RoundContext) -> Message:
        samples, settings = self.samples_of(client, request), self.settings
        architecture = client.profile.architecture
        own = part(client.state, MODEL)
        fresh = Streams(context.streams.seed).at("client", client.profile.id, "model", architecture)
        model = client.task.build(architecture, own or None, None if own else fresh)
        if CONSENSUS in request:
            streams = client.streams.at("digest")
            proxy, objective = Told(samples, request[CONSENSUS].float()), on_logits("vanilla", settings.temperature)
            towards(model, client.task, proxy, objective, settings, settings.steps, streams, client.meter)
        trained = train(client, model, self.training, context)
        client.state = {**client.state, **under(MODEL, state_of(model))}
        return Message({LOGITS: self.said(client, model, samples), **work_report(trained)})

    def expect(self, state: Tensors, who: Profile, request: Message) -> Mapping[str, tuple[Shape, torch.dtype]]:
        return {**self.expected_words(len(request[SELECTED])), **work_expected(self.task.terms)}

    def aggregate(self, state: Tensors, replies: Sequence[Reply], context: RoundContext) -> Tensors:
        words: Tensor = self.consensus(replies)
        return {**state, CONSENSUS: words.to(replies[0].message[LOGITS].dtype)}

    def personalise(self, server: Tensors, state: Tensors) -> Tensors | None:
        return part(state, MODEL) or None
