"""An optimiser of the user's own, of `torch.optim`, in the place of the built-in ones.

Its learning rate is its own, multiplied by the factor of the rounds' schedule (`training.schedule`, `training.warmup`).
A scheduler starts fresh in each round and is advanced to where it would be if the client had taken part in every
earlier round, so that a resumed run has the same bits.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fedstill.core.errors import InputError
from fedstill.core.optimisers import Optimiser
from fedstill.core.own_training import optimisers
from fedstill.core.task import Tensors

if TYPE_CHECKING:
    from torch.optim import Optimizer

_NUMBERS = {"bool": bool, "int": int, "float": float}  # in the state of an optimiser, beside tensors
_NONE = "none"


class OwnOptimiser(Optimiser):
    """What the user's function made of the parameters; `unit` is what its scheduler counts."""

    def __init__(self, name: str, parameters: Iterable[nn.Parameter], unit: str) -> None:
        self.name, self.unit = name, unit
        self.given = [parameter for parameter in parameters if parameter.requires_grad]
        self.inner, self.scheduler = _made(name, self.given)
        self.parameters = [parameter for group in self.inner.param_groups for parameter in group["params"]]
        self.factors = [1.0] * len(self.parameters)
        self.rate = self.factor = 1.0

    def begin(self, rate: float, factor: float, passed: int) -> None:
        self.factor = factor
        self._advance(passed)

    def end_epoch(self) -> None:
        if self.unit == "epoch":
            self._advance(1)

    def zero_grad(self) -> None:
        for parameter in self.given:
            parameter.grad = None

    def step(self) -> None:
        slow = [
            (parameter, parameter.detach().clone(), factor)
            for parameter, factor in zip(self.parameters, self.factors, strict=True)
            if factor != 1.0
        ]
        rates = [group.get("lr") for group in self.inner.param_groups]
        if self.factor != 1.0:
            for group in self.inner.param_groups:
                group["lr"] = group["lr"] * self.factor
        self.inner.step()
        if self.factor != 1.0:
            for group, rate in zip(self.inner.param_groups, rates, strict=True):
                group["lr"] = rate
        with torch.no_grad():
            for parameter, before, factor in slow:
                parameter.copy_(before.lerp(parameter, factor))
        if self.unit == "step":
            self._advance(1)

    def moments(self) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for index, held in self.inner.state_dict()["state"].items():
            for name, value in held.items():
                if isinstance(value, Tensor):
                    found[f"{index}/{name}"] = value.detach().cpu().clone()
                elif value is None:
                    found[f"{index}/{name}#{_NONE}"] = torch.tensor(0)
                elif type(value).__name__ in _NUMBERS:
                    found[f"{index}/{name}#{type(value).__name__}"] = torch.tensor(value, dtype=torch.float64)
                else:
                    raise InputError(
                        f"the optimiser {self.name} keeps a {type(value).__name__} ({name}) between steps, which cannot"
                        " be kept between rounds: set training.keep_optimiser=false"
                    )
        return found

    def load(self, moments: Tensors) -> None:
        if not moments:
            return
        state: dict[int, dict[str, Any]] = {}
        for path, tensor in moments.items():
            index, name = path.split("/", 1)
            name, _, kind = name.partition("#")
            state.setdefault(int(index), {})[name] = _restored(tensor, kind)
        self.inner.load_state_dict({"state": state, "param_groups": self.inner.state_dict()["param_groups"]})

    def _advance(self, steps: int) -> None:
        if self.scheduler is None:
            return
        with warnings.catch_warnings():  # torch expects a step of the optimiser before each of the scheduler
            warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step", category=UserWarning)
            for _ in range(steps):
                self.scheduler.step()


def _restored(tensor: Tensor, kind: str) -> Any:
    if not kind:
        return tensor.clone()
    return None if kind == _NONE else _NUMBERS[kind](tensor.item())


def _made(name: str, parameters: list[nn.Parameter]) -> tuple[Optimizer, Any]:
    """What the user's function returns, as optimiser and scheduler; refused if it is something else."""
    from torch.optim import Optimizer  # here, because its import takes a second
    from torch.optim.lr_scheduler import LRScheduler

    made = optimisers[name](parameters)
    inner, scheduler = made if isinstance(made, tuple | list) and len(made) == 2 else (made, None)
    if not isinstance(inner, Optimizer) or not isinstance(scheduler, LRScheduler | None):
        found = " and ".join(
            f"an object of type {type(one).__name__}" for one in ((inner,) if scheduler is None else (inner, scheduler))
        )
        raise InputError(
            f"the optimiser {name} must return an optimiser of torch.optim, or a pair of it and a scheduler, and"
            f" returns {found}"
        )
    known = {id(parameter) for parameter in parameters}
    held = [parameter for group in inner.param_groups for parameter in group["params"]]
    if strange := sum(id(parameter) not in known for parameter in held):
        raise InputError(
            f"the optimiser {name} holds {strange} parameters that it was not given: make it from the parameters that"
            " are its argument"
        )
    return inner, scheduler
