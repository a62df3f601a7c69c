"""Adaptive server optimisers: FedAdam, FedYogi and FedAdagrad.

*Adaptive Federated Optimization*, Reddi et al., 2021, https://arxiv.org/abs/2003.00295

    D = mean(w_i) - w
    m <- beta1 m + (1 - beta1) D
    v <- beta2 v + (1 - beta2) D^2                     FedAdam
    v <- v - (1 - beta2) D^2 sign(v - D^2)             FedYogi
    v <- v + D^2                                       FedAdagrad
    w <- w + eta m / (sqrt(v) + tau)

There is no bias correction. Preset `original` initialises v to tau^2 with beta2 = 0.99, as published; `seed`
initialises it to zero with beta2 = 0.999.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from fedstill.core.message import under
from fedstill.core.task import Tensors
from fedstill.methods.base import methods, zeros_like
from fedstill.methods.fedavg import FedAvg, FedAvgSettings

FIRST, SECOND = "first/", "second/"


class AdaptiveSettings(FedAvgSettings):
    eta: float = Field(0.05, gt=0, description="server learning rate")
    beta1: float = Field(0.9, ge=0, lt=1, description="decay of the first moment")
    beta2: float | None = Field(None, ge=0, lt=1, description="decay of the second moment; unset: by the preset")
    tau: float = Field(1e-3, gt=0, description="floor of the denominator: how adaptive the server is")
    preset: Literal["original", "seed"] = Field(
        "original", description="original: beta2 0.99, second moment from tau^2; seed: 0.999, from zero"
    )

    @property
    def decay(self) -> float:
        return {"original": 0.99, "seed": 0.999}[self.preset] if self.beta2 is None else self.beta2

    @property
    def floor(self) -> float:
        """The initial value of the second moment."""
        return self.tau**2 if self.preset == "original" else 0.0


Growth = Callable[[Tensor, Tensor], Tensor]  # the next second moment v from v and D^2


def with_moments(server: Tensors, names: Sequence[str], floor: float) -> Tensors:
    """The server state with m = 0 and v = floor for each of these tensors."""
    first = zeros_like({name: server[name] for name in names})
    second = {name: torch.full_like(tensor, floor) for name, tensor in first.items()}
    return {**server, **under(FIRST, first), **under(SECOND, second)}


def adaptive_step(
    state: Tensors, mean: Tensors, names: Sequence[str], settings: AdaptiveSettings, grow: Growth
) -> Tensors:
    """The next server state: one optimiser step along the pseudo-gradient, the mean of the clients' updates."""
    stepped = dict(mean)
    for name in names:
        weight, kind = state[name].double(), state[name].dtype
        change = mean[name].double() - weight
        first = settings.beta1 * state[FIRST + name].double() + (1 - settings.beta1) * change
        second = grow(state[SECOND + name].double(), change.square())
        stepped[FIRST + name], stepped[SECOND + name] = first.to(kind), second.to(kind)
        stepped[name] = (weight + settings.eta * first / (second.sqrt() + settings.tau)).to(kind)
    return stepped


@methods.register("fedadam")
class FedAdam(FedAvg):
    """FedAvg with Adam as the server optimiser."""

    Options = AdaptiveSettings
    settings: AdaptiveSettings
    from_sums = True

    def server_state(self, model: Tensors) -> Tensors:
        server = super().server_state(model)
        return with_moments(server, self.moving(server), self.settings.floor)

    def rule(self, state: Tensors, replies: Sequence[Tensors], weights: Sequence[float]) -> Tensors:
        mean = super().rule(state, replies, weights)
        return adaptive_step(state, mean, self.moving(state), self.settings, self.grow)

    def grow(self, second: Tensor, square: Tensor) -> Tensor:
        return self.settings.decay * second + (1 - self.settings.decay) * square


@methods.register("fedyogi")
class FedYogi(FedAvg):
    """FedAvg with Yogi as the server optimiser: bounded changes of the second moment."""

    Options = AdaptiveSettings
    settings: AdaptiveSettings
    from_sums = True

    def server_state(self, model: Tensors) -> Tensors:
        server = super().server_state(model)
        return with_moments(server, self.moving(server), self.settings.floor)

    def rule(self, state: Tensors, replies: Sequence[Tensors], weights: Sequence[float]) -> Tensors:
        mean = super().rule(state, replies, weights)
        return adaptive_step(state, mean, self.moving(state), self.settings, self.grow)

    def grow(self, second: Tensor, square: Tensor) -> Tensor:
        return second - (1 - self.settings.decay) * square * torch.sign(second - square)


@methods.register("fedadagrad")
class FedAdagrad(FedAvg):
    """FedAvg with Adagrad as the server optimiser: the second moment accumulates."""

    Options = AdaptiveSettings
    settings: AdaptiveSettings
    from_sums = True

    def server_state(self, model: Tensors) -> Tensors:
        server = super().server_state(model)
        return with_moments(server, self.moving(server), self.settings.floor)

    def rule(self, state: Tensors, replies: Sequence[Tensors], weights: Sequence[float]) -> Tensors:
        mean = super().rule(state, replies, weights)
        return adaptive_step(state, mean, self.moving(state), self.settings, self.grow)

    def grow(self, second: Tensor, square: Tensor) -> Tensor:
        return second + square
