"""MOON.

*Model-Contrastive Federated Learning*, Li, He and Song, 2021, https://arxiv.org/abs/2103.16257

    L_i(w) + mu * -log  exp(sim(z, z_g)/tau) / (exp(sim(z, z_g)/tau) + exp(sim(z, z_p)/tau))

z, z_g and z_p are the features of a sample under the model in training, the round's shared model and the client's own
model of its previous round; sim is the cosine similarity. The last two models are in evaluation mode. A client that
takes part for the first time has no previous model, and no contrastive term. With mu = 0 this matches FedAvg bit for
bit.

The paper places a learnt projection head between the features and z; here z are the pooled features themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedstill.core.dataset import Batch, without_answers
from fedstill.core.fit import Terms
from fedstill.core.kinds import state_of
from fedstill.core.message import Message, part, under
from fedstill.core.protocols import Client, Profile, RoundContext, Shape
from fedstill.core.task import Output, Tensors
from fedstill.methods.base import MODEL, methods, same_as, train, work_expected, work_report
from fedstill.methods.fedavg import FedAvg, FedAvgSettings

PREVIOUS = "previous/"


class MoonSettings(FedAvgSettings):
    mu: float = Field(1.0, ge=0, description="weight of the contrastive term")
    tau: float = Field(0.5, gt=0, description="temperature of the contrastive term")


@methods.register("moon")
class Moon(FedAvg):
    """Model-contrastive learning: features close to the shared model's and far from the previous local model's."""

    Options = MoonSettings
    settings: MoonSettings
    local_updates = False
    refuses: ClassVar = {
        "local_update": "moon adds a contrastive term to the loss of each step, and a local update has its own loss:"
        " leave training.local_update out, or use fedavg"
    }
    needs = FedAvg.needs | {"features"}

    @property
    def terms(self) -> tuple[str, ...]:
        return (*self.task.terms, "contrastive")

    def reply(self, client: Client, request: Message, context: RoundContext) -> Message:
        model = client.task.build(client.profile.architecture, request.part(MODEL))
        previous = part(client.state, PREVIOUS)
        if previous:
            others = {"shared": request.part(MODEL), "previous": previous}
            trained = train(client, model, self.training, context, self.contrast, shared=_Features(client, others))
        else:
            trained = train(client, model, self.training, context)
        state = state_of(model)
        client.state = {**client.state, **under(PREVIOUS, state)}
        return Message({**under(MODEL, state), **work_report(trained, self.terms)})

    def expect(self, state: Tensors, who: Profile, request: Message) -> Mapping[str, tuple[Shape, torch.dtype]]:
        return {**same_as(under(MODEL, part(state, MODEL))), **work_expected(self.terms)}

    def contrast(self, output: Output, batch: Batch, shared: Mapping[str, Tensor]) -> Terms:
        term = contrastive(output.features, shared["shared"], shared["previous"], self.settings.tau)
        return {**output.terms, "contrastive": self.settings.mu * term}


def contrastive(features: Tensor, shared: Tensor, previous: Tensor, tau: float) -> Tensor:
    """The mean contrastive loss, -log softmax of the two similarities, over samples (or points, one row each).

    >>> one = torch.tensor([[1.0, 0.0]])
    >>> round(float(contrastive(one, one, torch.tensor([[0.0, 1.0]]), tau=0.5)), 4)  # log(1 + exp(-2))
    0.1269
    """
    rows, *others = (each.flatten(0, -2) for each in (features, shared, previous))
    similar = torch.stack([F.cosine_similarity(rows, other) for other in others], dim=1)
    return F.cross_entropy(similar / tau, similar.new_zeros(len(similar), dtype=torch.long))


class _Features:
    """The features of a batch under frozen models, computed once per batch."""

    def __init__(self, client: Client, states: Mapping[str, Tensors]) -> None:
        self.client = client
        self.models = {
            name: client.task.build(client.profile.architecture, state).eval() for name, state in states.items()
        }

    def __call__(self, batch: Batch) -> Mapping[str, Tensor]:
        self.client.meter.add(len(self.models) * len(batch["sample_id"]))
        inputs = without_answers(batch)
        with torch.no_grad():
            return {name: self.client.task.forward(model, inputs).features for name, model in self.models.items()}
