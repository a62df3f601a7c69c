"""Federated averaging.

*Communication-Efficient Learning of Deep Networks from Decentralized Data*, McMahan et al., 2017,
https://arxiv.org/abs/1602.05629

    w_i <- local training from w          (each client i of the cohort)
    w   <- sum_i n_i w_i / sum_i n_i      (or the plain mean, with `weights: uniform`)

Float buffers are averaged with the same weights; integer buffers take the maximum. See `buffers` for alternatives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from fedstill.core.egress import Egress
from fedstill.core.fit import Correct, Loss, task_loss
from fedstill.core.kinds import BUFFERS, average, names_by_kind, state_of
from fedstill.core.message import Message, part, under
from fedstill.core.protocols import Client, Exchange, Method, Profile, Reply, RoundContext, Shape
from fedstill.core.settings import Settings
from fedstill.core.streams import Streams
from fedstill.core.sums import Summand, Sums, declares_sums
from fedstill.core.task import Tensors
from fedstill.methods.base import (
    MODEL,
    MODEL_EGRESS,
    WEIGHTS,
    WORK_EGRESS,
    methods,
    same_as,
    train,
    work_expected,
    work_report,
)
from fedstill.methods.recalibration import recalibrations

Weighting = Literal["samples", "uniform"]

# What the mean of models needs: the weighted sums of updates. Counters, which would take a maximum, are left out: with
# sums alone the server keeps its own.
MODEL_SUMS = (Summand(WEIGHTS + "*", "update"), Summand(MODEL + BUFFERS + "*", "buffers"))


class ModelSettings(Settings):
    """The treatment of BatchNorm running statistics, a setting of every method that trains one shared model."""

    buffers: Literal["average", "recalibrate", "as-parameters"] = Field(
        "average",
        description="BatchNorm statistics: averaged; re-estimated for the aggregated model in an extra exchange; or, to"
        " reproduce an artefact, updated by the server's rule as if they were weights",
    )
    recalibration: Literal["one-pass", "layer-by-layer"] = Field(
        "one-pass",
        description="one-pass: all layers in one exchange; otherwise one exchange per layer, which equals pooled data",
    )

    @property
    def weighting(self) -> Weighting:
        """How clients are weighted in the mean; methods without this setting weight by number of samples."""
        return "samples"


class FedAvgSettings(ModelSettings):
    weights: Weighting = Field("samples", description="weight of each client's model in the average")

    @property
    def weighting(self) -> Weighting:
        return self.weights


@methods.register("fedavg")
class FedAvg(Method):
    """Federated averaging: the weighted mean of locally trained models."""

    name = "train"
    egress: Sequence[Egress] = (*MODEL_EGRESS, *WORK_EGRESS)
    local_updates: ClassVar[bool] = True
    Options: ClassVar[type[Settings]] = FedAvgSettings
    settings: ModelSettings
    reads_steps: ClassVar[bool] = False  # True: `rule` also reads `steps` in each reply
    from_sums: ClassVar[bool] = True  # a class with a rule of its own declares it anew (see `declares_sums`)

    def refusal(self, setting: str) -> str | None:
        changed = type(self).loss is not FedAvg.loss or type(self).correct is not FedAvg.correct
        if setting == "local_update" and changed and setting not in self.refuses:
            return (
                "this method changes the loss or the gradient of each step, which a local update takes itself: leave"
                " training.local_update out, or use fedavg"
            )
        return super().refusal(setting)

    def start(self, streams: Streams) -> Tensors:
        architecture = self.task.architectures[0]
        model = self.task.build(architecture, streams=streams.at("model", architecture))
        return self.server_state(state_of(model))

    def server_state(self, model: Tensors) -> Tensors:
        """The server's state that starts from this model; a method with memory of its own adds it here."""
        return under(MODEL, model)

    def exchanges(self, server: Tensors, round: int) -> Sequence[Exchange]:
        if self.settings.buffers != "recalibrate":
            return (self,)
        return (self, *recalibrations(self.task, self.settings.recalibration, self.training.batch))

    def request(self, state: Tensors, who: Profile, context: RoundContext) -> Message | None:
        return Message(under(MODEL, part(state, MODEL)))

    def reply(self, client: Client, request: Message, context: RoundContext) -> Message:
        model = client.task.build(client.profile.architecture, request.part(MODEL))
        loss, correct = self.loss(client, model, request), self.correct(client, model, request)
        trained = train(client, model, self.training, context, loss, correct=correct)
        return Message({**under(MODEL, names_by_kind(model)), **work_report(trained)})

    def expect(self, state: Tensors, who: Profile, request: Message) -> Mapping[str, tuple[Shape, torch.dtype]]:
        return {**same_as(under(MODEL, part(state, MODEL))), **work_expected(self.task.terms)}

    def aggregate(self, state: Tensors, replies: Sequence[Reply], context: RoundContext) -> Tensors:
        return self.rule(state, [reply.message for reply in replies], self.weights(replies))

    def rule(self, state: Tensors, replies: Sequence[Tensors], weights: Sequence[float]) -> Tensors:
        """The next server state from the clients' models, by client id, and their weights in a mean.

        It reads settings only, so that it also works on models trained elsewhere (see `server_rule.py`).
        """
        return {**state, **under(MODEL, average([part(reply, MODEL) for reply in replies], weights))}

    @property
    def summed(self) -> Sequence[Summand] | None:  # type: ignore[override]
        return MODEL_SUMS if declares_sums(type(self)) else None

    def sum_weight(self, who: Profile) -> int:
        return who.samples if self.settings.weighting == "samples" else 1

    def finish(self, state: Tensors, sums: Sums, context: RoundContext) -> Tensors:
        """The method's own aggregation, of one reply that holds the mean model."""
        return self.aggregate(state, [self.mean_reply(state, sums)], context)

    def mean_reply(self, state: Tensors, sums: Sums) -> Reply:
        """The mean of the clients' models, and the plain totals of whatever else is summed, as one reply."""
        found: dict[str, Tensor] = {}
        sent = self.common(Message(under(MODEL, part(state, MODEL))))
        for name, total in sums.totals.items():
            if not name.startswith(MODEL):
                found[name] = total
                continue
            mean = sums.mean(name)
            found[name] = (sent[name].double() + mean if name in sent else mean).to(state[name].dtype)
        return Reply(Profile(0, 1, self.task.architectures[0]), Message(found), None)

    def models(self, server: Tensors) -> Mapping[str, Tensors]:
        return {self.task.architectures[0]: part(server, MODEL)}

    def loss(self, client: Client, model: nn.Module, request: Message) -> Loss:
        """The loss that a client minimises: the task's own; methods derived from FedAvg may add a term here."""
        return task_loss

    def correct(self, client: Client, model: nn.Module, request: Message) -> Correct | None:
        """The correction of each gradient before the optimiser step; methods derived from FedAvg may return one."""
        return None

    def weights(self, replies: Sequence[Reply]) -> list[float]:
        """The weight of each reply in the mean."""
        return weigh(replies, self.settings.weighting)

    @property
    def local(self) -> frozenset[str]:
        """The names of the model's tensors that stay on each client."""
        return frozenset()

    def shared_weights(self, server: Tensors) -> list[str]:
        """The names of the weights that are sent to every client and uploaded by it."""
        weights = [name for name in sorted(server) if name.startswith(WEIGHTS)]
        return [name for name in weights if name.removeprefix(MODEL) not in self.local]

    def moving(self, server: Tensors) -> list[str]:
        """What the server rule updates: weights, and running statistics only with `buffers: as-parameters`."""
        kinds = (WEIGHTS, MODEL + BUFFERS) if self.settings.buffers == "as-parameters" else (WEIGHTS,)
        return [name for name in sorted(server) if name.startswith(kinds)]


def buffers_of(settings: Settings) -> str | None:
    """The `buffers` setting among these method settings; None if the method has no such setting."""
    return settings.buffers if isinstance(settings, ModelSettings) else None


def weigh(replies: Sequence[Reply], by: Weighting) -> list[float]:
    """The weight of each reply in a mean: its client's number of samples, or equal weights."""
    return [float(reply.profile.samples) if by == "samples" else 1.0 for reply in replies]
