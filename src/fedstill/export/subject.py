"""A run as something to export or to time: its model, its task, and, where they are here, its test data."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn

from fedstill.core.dataset import Dataset
from fedstill.core.errors import InputError
from fedstill.core.streams import Streams
from fedstill.data.lookup import load
from fedstill.runtime.defaults import resolve
from fedstill.runtime.result import Run
from fedstill.tasks.classification import Classification

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Subject:
    """A trained model of a finished run."""

    run: Run
    which: str = "last"
    client: int | None = None
    data_root: Path | None = None
    architecture: str | None = None  # where clients have different ones; None: the first

    def __post_init__(self) -> None:
        self.task.file_form()  # refuses a task whose models cannot be exported
        self.run.result  # noqa: B018 (asking for it refuses a run that is not finished)
        self.model  # noqa: B018 (a model that is not there is refused here)

    @cached_property
    def task(self) -> Classification:
        """The run's task, of all its architectures with this model's alone."""
        return replace(self.run.task, architectures=(self.run.architecture(self.architecture, self.client),))

    @cached_property
    def model(self) -> nn.Module:
        """The model with the outputs of a file."""
        return self.task.file_form().write(self.run.built(self.which, self.client, self.architecture)).eval()

    @cached_property
    def test_data(self) -> Dataset:
        """The test data of the run, refusing data that is not what the run has seen."""
        experiment, bundle = self.run.experiment, load(self.run.experiment.data, self.data_root)
        _, bundle = resolve(experiment, bundle)
        if bundle.fingerprint() != self.run.config["fingerprint"]:
            raise InputError(f"{experiment.data} has changed since {self.run.path} was run: its test data are not here")
        return bundle.test

    def inputs(self, count: int) -> tuple[Tensor, str]:
        """So many inputs, and where they come from: the first test samples, or, where those are not here, drawn."""
        try:
            data = self.test_data
        except InputError:
            _log.info("the test data is not here: random inputs are used", exc_info=True)
            drawn = self.task.file_form().drawn(count, self.task.shape, Streams(0).draw("export", "inputs"))
            return drawn, "random"
        # From a small test set the same samples again and again.
        return data.batch(torch.arange(count) % len(data))["inputs"], "test data"

    def about(self) -> dict[str, str]:
        """What a file says of the run that its model comes from."""
        experiment = self.run.experiment
        more = {} if self.client is None else {"client": str(self.client)}
        if (made := self.run.preparation) is not None:
            more["features"] = json.dumps(made.to_dict(), ensure_ascii=False)
        return {
            "run": str(self.run.config["identity"]),
            "which": self.which,
            "data": experiment.data,
            "method": experiment.method.name,
        } | more


def parameters_of(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def bytes_of(model: nn.Module) -> int:
    """Parameters and buffers as they are in memory: what the papers call a model's size."""
    return sum(tensor.nbytes for tensor in model.state_dict().values())
