"""Validation data on the server: it compares models, and the steps of a distillation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from fedstill.core.dataset import Dataset
from fedstill.core.errors import InputError
from fedstill.core.kinds import state_of
from fedstill.core.task import Task

VALIDATION = "server validation"  # the input of a method


class ServerValidation:
    """The server's validation data, if it has any. It is not pickled: clients must not see it."""

    def __init__(self, inputs: Mapping[str, Any] | None) -> None:
        """From a method's inputs; a method that is read from a finished run has none."""
        self._data: Dataset | None = None if inputs is None else inputs.get(VALIDATION)

    def require(self, setting: str) -> None:
        """Refuse a setting that needs this data where there is none."""
        if self._data is None:
            raise InputError(
                f"method.{setting} compares models on samples that clients do not have: set validation=0.1, and"
                " evaluation=central"
            )

    def accuracy(self, task: Task, model: nn.Module) -> float:
        """The validation accuracy of a model."""
        assert self._data is not None
        return task.summarise(task.score([model], self._data))["accuracy"]

    def __getstate__(self) -> dict[str, Any]:
        return {"_data": None}


class BestStep:
    """Watches a model in training: its state after the step with the best accuracy; of equals, after the latest."""

    def __init__(self, model: nn.Module, accuracy: Callable[[nn.Module], float], steps: int, every: int) -> None:
        self.model, self.accuracy, self.steps, self.every = model, accuracy, steps, every
        self.best, self.step = -1.0, 0
        self.state: dict[str, Tensor] = state_of(model)

    def __call__(self, step: int) -> None:
        if step != 1 and step % self.every and step != self.steps:
            return
        found = self.accuracy(self.model)
        if found >= self.best:
            self.best, self.step, self.state = found, step, state_of(self.model)
