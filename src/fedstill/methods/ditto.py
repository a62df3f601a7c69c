"""Ditto.

*Ditto: Fair and Robust Federated Learning Through Personalization*, Li et al., 2021, https://arxiv.org/abs/2012.04221

    w    as in FedAvg
    v_i <- argmin  L_i(v) + lambda/2 ||v - w_g||^2     (locally, from the client's own v_i)

w_g is the model at the start of the round. The shared model matches FedAvg bit for bit; Ditto adds the personal models
v_i, which never leave their clients. A client's first v_i is initialised from w_g.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from fedstill.core.kinds import state_of
from fedstill.core.message import Message, part, under
from fedstill.core.protocols import Client, RoundContext
from fedstill.core.task import Tensors
from fedstill.methods.base import MODEL, WEIGHTS, methods, train
from fedstill.methods.fedavg import FedAvg, FedAvgSettings
from fedstill.methods.gradients import correction

PERSONAL = "personal/"


class DittoSettings(FedAvgSettings):
    pull: float = Field(
        0.1, ge=0, description="lambda: strength with which personal models are regularised towards the shared one"
    )


@methods.register("ditto")
class Ditto(FedAvg):
    """FedAvg plus a personal model per client, regularised towards the shared model."""

    Options = DittoSettings
    settings: DittoSettings
    local_updates = False
    refuses: ClassVar = {
        "local_update": "ditto regularises the steps of a second model on each client, and a local update trains one"
        " model in its own way: leave training.local_update out, or use fedavg or fine-tuned"
    }
    personal = True

    def reply(self, client: Client, request: Message, context: RoundContext) -> Message:
        shared = super().reply(client, request, context)
        own = part(client.state, PERSONAL) or request.part(MODEL)
        model = client.task.build(client.profile.architecture, own)
        pull = correction(model, pull=self.settings.pull, anchor=request.part(WEIGHTS))
        streams = client.streams.at("personal")
        train(client, model, self.training, context, correct=pull, streams=streams, moments="personal-optimiser/")
        client.state = {**client.state, **under(PERSONAL, state_of(model))}
        return shared

    def personalise(self, server: Tensors, state: Tensors) -> Tensors | None:
        return part(state, PERSONAL) or None
