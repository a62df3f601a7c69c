"""How a model is trained: settings, optimisers, and optimiser moments as named tensors."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from fedstill.core.settings import Settings
from fedstill.core.task import Tensors


class Training(Settings):
    """Local training of one model; shared by every method."""

    epochs: int = Field(3, ge=1, description="passes over the client's data per round")
    batch: int = Field(16, ge=2, description="samples per step; a last batch of one is skipped")
    optimiser: Literal["sgd", "adam", "adamw"] = "sgd"
    rate: float = Field(0.05, gt=0, description="learning rate")
    momentum: float = Field(0.9, ge=0, lt=1, description="sgd only")
    weight_decay: float = Field(0.0, ge=0)
    clip: float | None = Field(None, gt=0, description="largest gradient norm")
    schedule: Literal["constant", "step", "cosine"] = Field("constant", description="of the rate, over rounds")
    step_every: int = Field(20, ge=1, description="rounds between the steps of `step`")
    step_factor: float = Field(0.7, gt=0, le=1)
    keep_optimiser: bool = Field(False, description="keep the optimiser's moments between rounds")

    def make_optimiser(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """One fused kernel a step: on small models the optimiser's Python loop costs as much as the arithmetic."""
        chosen = [parameter for parameter in parameters if parameter.requires_grad]
        if self.optimiser == "sgd":
            return torch.optim.SGD(
                chosen, self.rate, momentum=self.momentum, weight_decay=self.weight_decay, fused=True
            )
        kind = torch.optim.Adam if self.optimiser == "adam" else torch.optim.AdamW
        return kind(chosen, self.rate, weight_decay=self.weight_decay, fused=True)

    def factor(self, turn: int, turns: int) -> float:
        """What the rate is multiplied by in turn `turn` of `turns`.

        >>> Training(schedule="step", step_every=20).factor(40, 200)
        0.48999999999999994
        """
        if self.schedule == "step":
            return self.step_factor ** (turn // self.step_every)
        if self.schedule == "cosine":
            return 0.5 * (1 + math.cos(math.pi * turn / turns))
        return 1.0


def set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    for group in optimiser.param_groups:
        group["lr"] = rate


def moments_of(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """An optimiser's state as named tensors: moments are state like any other."""
    held = optimiser.state_dict()["state"]
    return {
        f"{index}/{name}": value.detach().cpu().clone()
        for index, values in held.items()
        for name, value in values.items()
        if isinstance(value, Tensor)
    }


def load_moments(optimiser: torch.optim.Optimizer, moments: Tensors) -> None:
    """Put back what `moments_of` took; nothing to put back leaves the optimiser fresh."""
    state: dict[int, dict[str, Tensor]] = {}
    for path, tensor in moments.items():
        index, name = path.split("/", 1)
        state.setdefault(int(index), {})[name] = tensor.clone()
    optimiser.load_state_dict({**optimiser.state_dict(), "state": state})
