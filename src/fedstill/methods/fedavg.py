"""Federated averaging.

*Communication-Efficient Learning of Deep Networks from Decentralized Data*, McMahan et al., 2017,
https://arxiv.org/abs/1602.05629

    w_i <- local training from w          (each client i of the cohort)
    w   <- sum_i n_i w_i / sum_i n_i      (or the plain mean, with `weights: uniform`)

Float buffers are averaged with the same weights, integer buffers take the maximum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import nn

from fedstill.core.fit import Loss, task_loss
from fedstill.core.kinds import average, state_of
from fedstill.core.message import Message, part, under
from fedstill.core.protocols import Client, Method, Profile, Reply, Shape, Turn
from fedstill.core.settings import Settings
from fedstill.core.streams import Streams
from fedstill.core.task import Tensors
from fedstill.methods.base import MODEL_EGRESS, WORK_EGRESS, methods, same_as, train, work_expected, work_report


class FedAvgSettings(Settings):
    weights: Literal["samples", "uniform"] = Field("samples", description="how much each client's model counts")


@methods.register("fedavg")
class FedAvg(Method):
    """The weighted mean of locally trained models."""

    name = "train"
    egress = (*MODEL_EGRESS, *WORK_EGRESS)
    Options: ClassVar[type[Settings]] = FedAvgSettings
    settings: FedAvgSettings

    def start(self, streams: Streams) -> Tensors:
        architecture = self.task.architectures[0]
        model = self.task.build(architecture, streams=streams.at("model", architecture))
        return under("model/", state_of(model))

    def request(self, state: Tensors, who: Profile, turn: Turn) -> Message | None:
        return Message(under("model/", part(state, "model/")))

    def reply(self, client: Client, request: Message, turn: Turn) -> Message:
        model = client.task.build(client.profile.architecture, request.part("model/"))
        trained = train(client, model, self.training, turn, self.loss(client, model, request))
        return Message({**under("model/", state_of(model)), **work_report(trained)})

    def expect(self, state: Tensors, who: Profile, request: Message) -> Mapping[str, tuple[Shape, torch.dtype]]:
        return {**same_as(under("model/", part(state, "model/"))), **work_expected(self.task.terms)}

    def merge(self, state: Tensors, replies: Sequence[Reply], turn: Turn) -> Tensors:
        merged = average([reply.message.part("model/") for reply in replies], self.weights(replies))
        return {**state, **under("model/", merged)}

    def models(self, server: Tensors) -> Mapping[str, Tensors]:
        return {self.task.architectures[0]: part(server, "model/")}

    def loss(self, client: Client, model: nn.Module, request: Message) -> Loss:
        """What a client minimises: the task's own loss; relatives of FedAvg add their term here."""
        return task_loss

    def weights(self, replies: Sequence[Reply]) -> list[float]:
        by_samples = self.settings.weights == "samples"
        return [float(reply.profile.samples) if by_samples else 1.0 for reply in replies]
