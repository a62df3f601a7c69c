"""Federated learning by model distillation on the clients.

*FedMD: Heterogenous Federated Learning via Model Distillation*, Li and Wang, 2019, https://arxiv.org/abs/1910.03581

    z    <- sum_i n_i z_i / sum_i n_i          (the server: the mean of the clients' logits of the last round)
    w_i  <- distilled towards softmax(z)       (each client i: "digest"), then trained on its own data ("revisit")
    z_i  <- logits of w_i on the proxy samples

Every client keeps its own model, of any architecture; only logits are communicated, in both directions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import nn

from fedstill.core.dataset import SharedSamples, Told
from fedstill.core.kinds import state_of
from fedstill.core.message import Message, part, under
from fedstill.core.protocols import Client, Method, Profile, Reply, RoundContext, Shape
from fedstill.core.settings import Settings
from fedstill.core.streams import Streams
from fedstill.core.task import Task, Tensors
from fedstill.core.training import Training
from fedstill.methods.base import LOGITS, MODEL, WORK_EGRESS, methods, train, work_expected, work_report
from fedstill.methods.fedavg import Weighting
from fedstill.methods.recalibration import recalibrated
from fedstill.shared_image.proxy_selection import draw_uniformly
from fedstill.shared_image.shared_samples import (
    LOGITS_EGRESS,
    SELECTED,
    LogitSettings,
    ProxySettings,
    ServerProxy,
    StepSettings,
    check_whole_samples,
    client_logits,
    expected_logits,
    on_logits,
    samples_of,
    towards,
)
from fedstill.shared_image.teacher_weights import consensus
from fedstill.tasks.classification import Classification

CONSENSUS = "consensus"


class FedMDSettings(ProxySettings, StepSettings, LogitSettings):
    weights: Weighting = Field("samples", description="weight of each client's logits in the average")
    steps: int = Field(
        100, ge=1, description="epochs in which each client distils the consensus, before it trains on its own data"
    )

    added_later: ClassVar[frozenset[str]] = frozenset({"statistics"})


@methods.register("fedmd")
class FedMD(Method):
    """FedMD: clients with their own models learn from the mean of all clients' logits on shared samples."""

    name = "train"
    egress = (LOGITS_EGRESS, *WORK_EGRESS)
    Options: ClassVar[type[Settings]] = FedMDSettings
    needs = frozenset({"labels"})
    wants: ClassVar = frozenset({"shared samples"})
    task: Classification
    settings: FedMDSettings
    personal = True
    refuses: ClassVar[Mapping[str, str]] = {
        "several labels": "the logits that clients send are those of one class per sample: give data with one"
        " label, or choose another method, such as fedavg",
        "local_update": "clients also learn from the mean logits of all, which a local update is not given: leave"
        " training.local_update out, or use local-only",
    }

    def __init__(
        self, settings: Settings, task: Task, training: Training, inputs: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(settings, task, training)
        self.proxy = ServerProxy(inputs)

    def check(self) -> None:
        check_whole_samples(self.task)

    @classmethod
    def shared_samples(cls, settings: Any) -> SharedSamples:
        return SharedSamples.named(settings.proxy)

    def start(self, streams: Streams) -> Tensors:
        size = self.proxy.size(self.settings.samples)
        return {SELECTED: draw_uniformly(len(self.proxy.data), size, streams)}

    def request(self, state: Tensors, who: Profile, context: RoundContext) -> Message | None:
        known = {CONSENSUS: state[CONSENSUS]} if CONSENSUS in state else {}
        return Message({**self.proxy.question(state[SELECTED]), **known})

    def reply(self, client: Client, request: Message, context: RoundContext) -> Message:
        samples, settings = samples_of(client, request), self.settings
        architecture = client.profile.architecture
        own = part(client.state, MODEL)
        fresh = Streams(context.streams.seed).at("client", client.profile.id, "model", architecture)
        model = client.task.build(architecture, own or None, None if own else fresh)
        if CONSENSUS in request:
            streams = client.streams.at("digest")
            proxy, objective = Told(samples, request[CONSENSUS].float()), on_logits("vanilla", settings.temperature)
            towards(model, client.task, proxy, objective, settings, settings.steps, streams, client.meter)
            if settings.statistics == "recalibrate":
                model = self.recalibrated(client, model)
        trained = train(client, model, self.training, context)
        client.state = {**client.state, **under(MODEL, state_of(model))}
        logits = client_logits(client, model, samples, settings.precision)
        return Message({LOGITS: logits, **work_report(trained)})

    def recalibrated(self, client: Client, model: nn.Module) -> nn.Module:
        """The model with statistics of the client's own data, if it has BatchNorm layers; nothing is sent for it."""
        again = recalibrated(model, client.task, client.data, client.streams.at("recalibrate"), self.training.batch)
        if again is not None:
            client.meter.add(len(client.data))
        return again or model

    def expect(self, state: Tensors, who: Profile, request: Message) -> Mapping[str, tuple[Shape, torch.dtype]]:
        count, classes = len(request[SELECTED]), len(self.task.classes)
        return {**expected_logits(count, classes, self.settings.precision), **work_expected(self.task.terms)}

    def aggregate(self, state: Tensors, replies: Sequence[Reply], context: RoundContext) -> Tensors:
        logits = consensus(replies, self.settings.weights)
        return {**state, CONSENSUS: logits.to(replies[0].message[LOGITS].dtype)}

    def personalise(self, server: Tensors, state: Tensors) -> Tensors | None:
        return part(state, MODEL) or None
