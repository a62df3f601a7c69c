"""How good the models are: the shared ones, and where a method has them, each client's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

import torch
from torch import Tensor

from fedstill.core.dataset import Dataset, every_row
from fedstill.core.kinds import running
from fedstill.core.protocols import Method, Profile
from fedstill.core.task import Task, Tensors
from fedstill.runtime.client_store import ClientStore
from fedstill.runtime.reply_validation import all_finite

Metrics = Mapping[str, float]


@dataclass(frozen=True)
class Evaluation:
    """One round's scores. `personal` describes the spread over clients; empty where nobody has an own model.

    `also` holds the accuracy of further models by name, `negative_variances` the share of BatchNorm's running
    variances that are below zero, where no variance can be.
    """

    test: Metrics
    validation: Metrics
    personal: Metrics
    also: Mapping[str, Metrics]
    negative_variances: float
    finite: bool
    sites: Mapping[str, Any] | None = None  # evaluated on site: how many were asked and heard, bytes, who was lost


@dataclass(frozen=True)
class CentralEvaluator:
    """Scores models on data the server holds: simulations only."""

    task: Task
    test: Dataset
    validation: Dataset | None
    class_counts: Callable[[int], Tensor]  # a client's own samples of each class

    def __call__(self, method: Method, server: Tensors, profiles: list[Profile], store: ClientStore) -> Evaluation:
        models = method.models(server)
        test = self._shared(models, self.test)
        validation = self._shared(models, self.validation) if self.validation is not None else {}
        every, own = self._personal(method, server, profiles, store)
        personal = spread_of(every, own)
        first = self.task.architectures[0]
        also = {name: self._shared({first: state}, self.test) for name, state in method.extra_models(server).items()}
        if len(models) > 1:
            also |= {name: self._shared({name: state}, self.test) for name, state in models.items()}
        if not models and every:
            test = means_of(self.task, every)
        finite = all_say_something(models, test, personal)
        return Evaluation(test, validation, personal, also, negative_variances(self.task, models), finite)

    def truth(self) -> list[int] | None:
        """The label of every test sample; None where a sample has several."""
        labels = self.test.labels()
        return None if labels is None or labels.ndim > 1 else labels.tolist()

    def predictions(self, models: Mapping[str, Tensors]) -> list[int] | None:
        """The class said of every test sample, -1 where the output is not finite; None where that is not one thing."""
        if len(models) != 1 or self.truth() is None:
            return None
        ((architecture, state),) = models.items()
        model = self.task.build(architecture, state).eval()
        said = []
        for rows in every_row(self.test):
            with torch.inference_mode():
                said.append(self.task.forward(model, self.test.batch(rows)).logits.cpu())
        logits = torch.cat(said)
        return torch.where(logits.isfinite().all(dim=1), logits.argmax(dim=1), -1).tolist()

    def _shared(self, models: Mapping[str, Tensors], data: Dataset) -> Metrics:
        """Metrics of the shared model, or their mean over architectures."""
        each = [
            self.task.summarise(self.task.score([self.task.build(architecture, state)], data))
            for architecture, state in models.items()
        ]
        return {name: fmean(metrics[name] for metrics in each) for name in each[0]} if each else {}

    def _personal(
        self, method: Method, server: Tensors, profiles: list[Profile], store: ClientStore
    ) -> tuple[list[Metrics], list[float]]:
        """Every client's own model on all test data, and the same on each client's own mix of classes."""
        every: list[Metrics] = []
        own: list[float] = []
        for client in store.holders() if method.personal else ():
            state = method.personalise(server, store.load(client))
            if state is None:
                continue
            model = method.assemble(profiles[client].architecture, state)
            scores = self.task.score([model], self.test)
            every.append(self.task.summarise(scores))
            own.append(self.task.on_mix(scores, self.class_counts(client)))
        return every, own


def spread_of(every: Sequence[Metrics], own: Sequence[float]) -> Metrics:
    """What is said of clients' own models: their metrics, and accuracies on each client's own mix of classes."""
    if not every:
        return {}
    accuracies = [metrics["accuracy"] for metrics in every]
    return {
        "clients": len(every),
        "mean": fmean(accuracies),
        "std": stdev(accuracies) if len(every) > 1 else 0.0,
        "min": min(accuracies),
        "max": max(accuracies),
        "class_mean": fmean(metrics["class_accuracy"] for metrics in every),
        "own_mean": fmean(own),
        "own_std": stdev(own) if len(own) > 1 else 0.0,
        "loss": fmean(metrics["loss"] for metrics in every),
        "non_finite": sum(metrics["non_finite"] > 0 for metrics in every),
    }


def means_of(task: Task, every: Sequence[Metrics]) -> Metrics:
    """Where no model is shared, the means over clients' own stand for it."""
    return {name: fmean(metrics[name] for metrics in every) for name in task.headlines}


def negative_variances(task: Task, models: Mapping[str, Tensors]) -> float:
    """The share of BatchNorm's running variances that are below zero."""
    variances = [
        state[name]
        for architecture, state in models.items()
        for name in running(task.build(architecture, state), "running_var").values()
    ]
    return float(torch.cat(variances).lt(0).double().mean()) if variances else 0.0


def all_say_something(models: Mapping[str, Tensors], test: Metrics, personal: Metrics) -> bool:
    """Whether what is scored is finite: the shared models or, where there are none, all of the clients' own."""
    if any(not all_finite(tensor) for state in models.values() for tensor in state.values()):
        return False
    return test.get("non_finite", 0.0) == 0.0 and (bool(models) or not personal.get("non_finite", 0))
