"""FedAvg with server momentum.

*Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification*, Hsu, Qi and Brown, 2019,
https://arxiv.org/abs/1909.06335

    D = mean(w_i) - w
    v <- beta v + D
    w <- w + eta v
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from fedstill.core.message import under
from fedstill.core.task import Tensors
from fedstill.methods.base import methods, zeros_like
from fedstill.methods.fedavg import FedAvg, FedAvgSettings

MOMENTUM = "momentum/"


class FedAvgMSettings(FedAvgSettings):
    eta: float = Field(1.0, gt=0, description="server learning rate")
    beta: float = Field(0.9, ge=0, lt=1, description="server momentum")


@methods.register("fedavgm")
class FedAvgM(FedAvg):
    """FedAvg with server momentum."""

    Options = FedAvgMSettings
    settings: FedAvgMSettings
    from_sums = True

    def server_state(self, model: Tensors) -> Tensors:
        server = super().server_state(model)
        return {**server, **under(MOMENTUM, zeros_like({name: server[name] for name in self.moving(server)}))}

    def rule(self, state: Tensors, replies: Sequence[Tensors], weights: Sequence[float]) -> Tensors:
        merged = dict(super().rule(state, replies, weights))
        for name in self.moving(state):
            weight = state[name].double()
            momentum = self.settings.beta * state[MOMENTUM + name].double() + (merged[name].double() - weight)
            merged[MOMENTUM + name] = momentum.to(state[name].dtype)
            merged[name] = (weight + self.settings.eta * momentum).to(state[name].dtype)
        return merged
