"""FedBN.

*FedBN: Federated Learning on Non-IID Features via Local Batch Normalization*, Li et al., 2021,
https://arxiv.org/abs/2102.07623

    FedAvg over all tensors except BatchNorm layers, whose weights and statistics stay on their client.

The models of FedBN are personal: the shared tensors with a client's own BatchNorm layers. With `proxy: average` clients
also upload their BatchNorm layers, and the server averages them into a proxy model, which can be evaluated centrally or
used as a teacher; clients do not use it. With `proxy: none` BatchNorm layers never leave their client, and there is no
shared model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from fedstill.core.egress import Egress
from fedstill.core.errors import InputError
from fedstill.core.kinds import norm_names, state_of
from fedstill.core.message import Message, part, under
from fedstill.core.protocols import Client, Exchange, Profile, Reply, RoundContext, Shape
from fedstill.core.settings import Settings
from fedstill.core.task import Tensors
from fedstill.methods.base import MODEL, WORK_EGRESS, methods, same_as, train, work_expected, work_report
from fedstill.methods.fedavg import FedAvg, Weighting, weigh

LOCAL, PROXY = "local/", "proxy/"


class FedBnSettings(Settings):
    weights: Weighting = Field("samples", description="weight of each client's model in the average")
    proxy: Literal["none", "average"] = Field(
        "none", description="average: clients upload BatchNorm layers too, for a central model that they ignore"
    )


@methods.register("fedbn")
class FedBn(FedAvg):
    """FedAvg with local batch normalisation: BatchNorm layers stay on their clients."""

    Options = FedBnSettings
    settings: FedBnSettings  # type: ignore[assignment]  # what the server does with running statistics is settled
    personal = True
    from_sums = True
    shares = "proxy with averaged BatchNorm"

    @property
    def egress(self) -> Sequence[Egress]:  # type: ignore[override]
        if self.settings.proxy == "average":
            return FedAvg.egress
        return (
            Egress("model/parameters/*", "parameters", "the weights of the locally trained model, without BatchNorm"),
            Egress("model/buffers/*", "statistics", "buffers outside BatchNorm layers, where the model has any"),
            Egress("model/counters/*", "metrics", "counters outside BatchNorm layers, where the model has any"),
            *WORK_EGRESS,
        )

    def weights(self, replies: Sequence[Reply]) -> list[float]:
        return weigh(replies, self.settings.weights)

    @cached_property
    def local(self) -> frozenset[str]:
        """The names of the state tensors that belong to BatchNorm layers."""
        return frozenset(norm_names(self.task.build(self.task.architectures[0])))

    def check(self) -> None:
        if not self.local:
            raise InputError(
                f"fedbn keeps BatchNorm layers with their clients, and {self.task.architectures[0]} has none: choose a"
                " model with BatchNorm, e.g. cnn-bn"
            )

    def exchanges(self, server: Tensors, round: int) -> Sequence[Exchange]:
        return (self,)

    def request(self, state: Tensors, who: Profile, context: RoundContext) -> Message | None:
        model = part(state, MODEL)
        return Message(under(MODEL, model if who.last_round is None else self.body(model)))

    def reply(self, client: Client, request: Message, context: RoundContext) -> Message:
        own = {**request.part(MODEL), **part(client.state, LOCAL)}
        model = client.task.build(client.profile.architecture, own)
        trained = train(client, model, self.training, context)
        state = state_of(model)
        client.state = {**client.state, **under(LOCAL, {name: state[name] for name in self.local})}
        return Message({**under(MODEL, self.sent(state)), **work_report(trained)})

    def expect(self, state: Tensors, who: Profile, request: Message) -> Mapping[str, tuple[Shape, torch.dtype]]:
        return {**same_as(under(MODEL, self.sent(part(state, MODEL)))), **work_expected(self.task.terms)}

    def aggregate(self, state: Tensors, replies: Sequence[Reply], context: RoundContext) -> Tensors:
        """The mean of the shared tensors; averaged BatchNorm layers go only into the proxy model, never to clients."""
        merged = part(super().aggregate(state, replies, context), MODEL)
        norms = {name: merged[name] for name in sorted(self.local)} if self.settings.proxy == "average" else {}
        return {**state, **under(MODEL, self.body(merged)), **under(PROXY, norms)}

    def sum_weight(self, who: Profile) -> int:
        return who.samples if self.settings.weights == "samples" else 1

    def common(self, request: Message) -> Tensors:
        """BatchNorm layers are sent at first contact only."""
        return under(MODEL, self.body(request.part(MODEL)))

    def models(self, server: Tensors) -> Mapping[str, Tensors]:
        if self.settings.proxy == "none":
            return {}
        return {self.task.architectures[0]: {**part(server, MODEL), **part(server, PROXY)}}

    def personalise(self, server: Tensors, state: Tensors) -> Tensors | None:
        own = part(state, LOCAL)
        return {**part(server, MODEL), **own} if own else None

    def body(self, model: Tensors) -> dict[str, Tensor]:
        """All tensors except those of BatchNorm layers."""
        return {name: tensor for name, tensor in model.items() if name not in self.local}

    def sent(self, model: Tensors) -> Tensors:
        """The tensors of its model that a client uploads."""
        return model if self.settings.proxy == "average" else self.body(model)
