"""SGD and Adam as thin wrappers around torch's fused kernels, with moments that are named tensors.

The arithmetic is torch's own, and tests hold it to the fused form of `torch.optim` bit for bit. What is left out is
`torch.optim` itself, whose first use imports torch's compiler in every process and worker, and whose bookkeeping costs
more than the arithmetic on small models.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable

import torch
from torch import Tensor, nn

from fedstill.core.task import Tensors

_BETAS = (0.9, 0.999)
_EPSILON = 1e-8


class Optimiser(ABC):
    """Steps parameters along their gradients."""

    parameters: list[nn.Parameter]  # those that it moves
    factors: list[float]  # of the rate, by the parameter's position
    rate: float

    def begin(self, rate: float, factor: float, passed: int) -> None:
        """Called when a turn of training begins: the rate, its factor in this turn, and earlier scheduler steps."""
        self.rate = rate * factor

    def end_epoch(self) -> None:  # noqa: B027 - only optimisers with a scheduler have something to do
        """Called after each pass over the data."""

    def zero_grad(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    @abstractmethod
    def step(self) -> None: ...

    def slow_down(self, some: Collection[nn.Parameter], factor: float) -> None:
        """Let these parameters learn at `factor` times the rate of the others."""
        slow = {id(parameter) for parameter in some}
        self.factors = [factor if id(parameter) in slow else 1.0 for parameter in self.parameters]

    @abstractmethod
    def moments(self) -> dict[str, Tensor]:
        """A copy of all moments: they are state like any other."""

    @abstractmethod
    def load(self, moments: Tensors) -> None:
        """Put back what `moments` gave; nothing to put back leaves the optimiser fresh."""


class FusedOptimiser(Optimiser):
    """An optimiser of this package; parameters without a gradient are left alone."""

    def __init__(self, parameters: Iterable[nn.Parameter], rate: float, weight_decay: float) -> None:
        self.parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self.rate, self.weight_decay = rate, weight_decay
        self.factors = [1.0] * len(self.parameters)
        self.held: dict[int, dict[str, Tensor]] = {}  # moments by the parameter's position

    def step(self) -> None:
        moving = [index for index, parameter in enumerate(self.parameters) if parameter.grad is not None]
        # A parameter's first step starts its moments; parameters may get their first gradient at different times.
        old = [index for index in moving if index in self.held]
        new = [index for index in moving if index not in self.held]
        with torch.no_grad():
            for group, first in ((old, False), (new, True)):
                for factor in dict.fromkeys(self.factors[index] for index in group):
                    self.update([i for i in group if self.factors[i] == factor], first, self.rate * factor)

    @abstractmethod
    def update(self, group: list[int], first: bool, rate: float) -> None:
        """Move the parameters at these positions; `first`: they have no moments yet."""

    def moments(self) -> dict[str, Tensor]:
        return {
            f"{index}/{name}": tensor.detach().cpu().clone()
            for index, tensors in self.held.items()
            for name, tensor in tensors.items()
        }

    def load(self, moments: Tensors) -> None:
        self.held = {}
        for path, tensor in moments.items():
            index, name = path.split("/", 1)
            device = self.parameters[int(index)].device
            self.held.setdefault(int(index), {})[name] = tensor.to(device, copy=True)

    def _lists(self, group: list[int]) -> tuple[list[Tensor], list[Tensor]]:
        chosen = [self.parameters[index] for index in group]
        return list(chosen), [parameter.grad for parameter in chosen if parameter.grad is not None]

    def _moments(self, group: list[int], name: str) -> list[Tensor]:
        return [self.held[index][name] for index in group]


class Sgd(FusedOptimiser):
    """v = momentum v + (g + decay w); w = w - rate v. Without momentum nothing is kept."""

    def __init__(
        self, parameters: Iterable[nn.Parameter], rate: float, momentum: float = 0.0, weight_decay: float = 0.0
    ) -> None:
        super().__init__(parameters, rate, weight_decay)
        self.momentum = momentum

    def update(self, group: list[int], first: bool, rate: float) -> None:
        weights, gradients = self._lists(group)
        if self.momentum and first:
            for index, weight in zip(group, weights, strict=True):
                self.held[index] = {"momentum": torch.empty_like(weight)}
        torch._fused_sgd_(
            weights,
            gradients,
            self._moments(group, "momentum") if self.momentum else [],
            weight_decay=self.weight_decay,
            momentum=self.momentum,
            lr=rate,
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=first,
        )


class Adam(FusedOptimiser):
    """Adam with betas 0.9 and 0.999 and epsilon 1e-8; `decoupled` weight decay makes it AdamW."""

    def __init__(
        self, parameters: Iterable[nn.Parameter], rate: float, weight_decay: float = 0.0, decoupled: bool = False
    ) -> None:
        super().__init__(parameters, rate, weight_decay)
        self.kernel = torch._fused_adamw_ if decoupled else torch._fused_adam_

    def update(self, group: list[int], first: bool, rate: float) -> None:
        weights, gradients = self._lists(group)
        if first:
            for index, weight in zip(group, weights, strict=True):
                self.held[index] = {
                    "first": torch.zeros_like(weight),
                    "second": torch.zeros_like(weight),
                    "steps": torch.zeros((), device=weight.device),
                }
        steps = self._moments(group, "steps")
        torch._foreach_add_(steps, 1)
        self.kernel(
            weights,
            gradients,
            self._moments(group, "first"),
            self._moments(group, "second"),
            [],
            steps,
            lr=rate,
            beta1=_BETAS[0],
            beta2=_BETAS[1],
            weight_decay=self.weight_decay,
            eps=_EPSILON,
            amsgrad=False,
            maximize=False,
        )
