"""How a model is trained, as settings."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import ClassVar, Literal

from pydantic import Field, NonNegativeFloat, ValidationInfo, field_validator
from torch import nn

from fedstill.core.errors import did_you_mean
from fedstill.core.optimisers import Adam, Optimiser, Sgd
from fedstill.core.own_optimiser import OwnOptimiser
from fedstill.core.own_training import BUILT_IN, OWN, choices
from fedstill.core.passed_objects import is_passed
from fedstill.core.settings import Settings

FloatType = Literal["fp32", "bf16", "fp16"]


class Training(Settings):
    """Local training of one model; shared by every method."""

    epochs: int = Field(3, ge=1, description="passes over the client's data per round")
    batch: int = Field(16, ge=2, description="samples per step; a last batch of one is skipped")
    optimiser: str = Field(
        "sgd",
        description="of local training: sgd, adam, adamw, or one of your own by its name",
        examples=list(BUILT_IN),
    )
    rate: float = Field(0.05, gt=0, description="learning rate; an optimiser of your own has its own")
    momentum: float = Field(0.9, ge=0, lt=1, description="sgd only")
    weight_decay: float = Field(0.0, ge=0, description="weight decay")
    clip: float | None = Field(None, gt=0, description="largest gradient norm")
    schedule: Literal["constant", "step", "cosine"] = Field(
        "constant", description="schedule of the learning rate over rounds"
    )
    step_every: int = Field(20, ge=1, description="rounds between the steps of `step`")
    step_factor: float = Field(0.7, gt=0, le=1, description="factor of the learning rate at each step of `step`")
    keep_optimiser: bool = Field(False, description="keep the optimiser's moments between rounds")
    warmup: int = Field(0, ge=0, description="warm-up: rounds in which the learning rate rises linearly")
    encoder_rate: float = Field(
        1.0, gt=0, description="factor of the learning rate for a model's encoder, if it has a separate one"
    )

    scheduler_step: Literal["round", "epoch", "step"] = Field(
        "round", description="when the scheduler of an optimiser of your own is stepped"
    )
    loss: str | None = Field(None, description="a loss of your own, by its name; unset: the task's")
    local_update: str | None = Field(
        None, description="local training of your own, by its name; unset: epochs of steps with the optimiser"
    )
    class_weights: Literal["balanced"] | tuple[NonNegativeFloat, ...] | None = Field(
        None,
        description="weights of classes in the loss of training: balanced (by each client's own class counts), or one"
        " number per class; unset: all alike",
    )
    precision: FloatType = Field(
        "fp32", description="precision of a model's forward pass, in training and evaluation (autocast)"
    )

    added_later: ClassVar[frozenset[str]] = frozenset(
        {"scheduler_step", "loss", "local_update", "precision", "class_weights"}
    )

    @field_validator(*OWN)
    @classmethod
    def _known(cls, name: str | None, info: ValidationInfo) -> str | None:
        """Names of objects are looked up when a run is planned: a finished run can be read without the object."""
        known = choices(str(info.field_name))
        if name is None or name in known or is_passed(name):
            return name
        raise ValueError(f"unknown choice {name!r}: {did_you_mean(name, known)}")

    def own(self) -> dict[str, str]:
        """The names of what is the user's own, by setting."""
        chosen = {setting: getattr(self, setting) for setting in OWN}
        return {setting: name for setting, name in chosen.items() if name is not None and name not in BUILT_IN}

    def optimiser_of(self, model: nn.Module) -> Optimiser:
        """For all of a model; those of its parameters that it calls slow learn at the encoder's rate."""
        optimiser = self.make_optimiser(model.parameters())
        slow: Callable[[], Iterable[nn.Parameter]] | None = getattr(model, "slow_parameters", None)
        if self.encoder_rate != 1.0 and slow is not None:
            optimiser.slow_down(list(slow()), self.encoder_rate)
        return optimiser

    def make_optimiser(self, parameters: Iterable[nn.Parameter]) -> Optimiser:
        if self.optimiser == "sgd":
            return Sgd(parameters, self.rate, self.momentum, self.weight_decay)
        if self.optimiser not in BUILT_IN:
            return OwnOptimiser(self.optimiser, parameters, self.scheduler_step)
        return Adam(parameters, self.rate, self.weight_decay, decoupled=self.optimiser == "adamw")

    def begin(self, optimiser: Optimiser, turn: int, turns: int, samples: int) -> None:
        """Prepare an optimiser for turn `turn` of `turns`, each of which passes over so many samples."""
        passed = {"round": 1, "epoch": self.epochs, "step": self.epochs * batches_in(samples, self.batch)}
        optimiser.begin(self.rate, self.factor(turn, turns), turn * passed[self.scheduler_step])

    def rate_in(self, turn: int, turns: int) -> float:
        """The rate in turn `turn` of `turns`."""
        return self.rate * self.factor(turn, turns)

    def factor(self, turn: int, turns: int) -> float:
        """What the rate is multiplied by in turn `turn` of `turns`.

        >>> Training(schedule="step", step_every=20).factor(40, 200)
        0.48999999999999994
        >>> [Training(warmup=3).factor(turn, 10) for turn in range(4)]
        [0.25, 0.5, 0.75, 1.0]
        """
        return min(1.0, (turn + 1) / (self.warmup + 1)) * self._scheduled(turn, turns)

    def _scheduled(self, turn: int, turns: int) -> float:
        if self.schedule == "step":
            return self.step_factor ** (turn // self.step_every)
        if self.schedule == "cosine":
            return 0.5 * (1 + math.cos(math.pi * turn / turns))
        return 1.0


def batches_in(samples: int, size: int) -> int:
    """The number of batches of an epoch; a last batch of one sample is skipped.

    >>> batches_in(32, 16), batches_in(33, 16), batches_in(34, 16), batches_in(1, 16)
    (2, 2, 3, 0)
    """
    return samples // size + (samples % size > 1)
