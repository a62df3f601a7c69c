"""FedProx.

*Federated Optimization in Heterogeneous Networks*, Li et al., 2020, https://arxiv.org/abs/1812.06127

    w_i <- argmin  L_i(w) + mu/2 ||w - w_g||^2        (locally, from the round's model w_g)
    w   <- the weighted mean of the w_i, as in FedAvg

The proximal term acts on parameters only. With mu = 0 this matches FedAvg bit for bit.
"""

from __future__ import annotations

from pydantic import Field
from torch import nn

from fedstill.core.fit import Correct
from fedstill.core.message import Message
from fedstill.core.protocols import Client
from fedstill.methods.base import WEIGHTS, methods
from fedstill.methods.fedavg import FedAvg, FedAvgSettings
from fedstill.methods.gradients import correction


class FedProxSettings(FedAvgSettings):
    mu: float = Field(0.01, ge=0, description="strength of the pull towards the round's shared model")


@methods.register("fedprox")
class FedProx(FedAvg):
    """FedAvg with a proximal term that keeps local models close to the shared model."""

    Options = FedProxSettings
    settings: FedProxSettings

    def refusal(self, setting: str) -> str | None:
        if setting != "local_update":
            return super().refusal(setting)
        if not self.settings.mu:
            return None
        return (
            "fedprox adds its proximal term to the gradient of each step, which a local update takes itself: set"
            " method.mu=0, or use fedavg and add the term in the update"
        )

    def correct(self, client: Client, model: nn.Module, request: Message) -> Correct | None:
        if self.training.local_update is not None:  # with mu = 0: see `refusal`
            return None
        return correction(model, pull=self.settings.mu, anchor=request.part(WEIGHTS))
