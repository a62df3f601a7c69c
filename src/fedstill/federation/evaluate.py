"""How good the models are: the shared ones, and where a method has them, each client's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import fmean, stdev

import torch
from torch import Tensor

from fedstill.core.dataset import Dataset, every_row
from fedstill.core.kinds import running
from fedstill.core.protocols import Method, Profile
from fedstill.core.task import Task, Tensors
from fedstill.federation.clients import ClientStore
from fedstill.federation.settle import all_finite

Metrics = Mapping[str, float]
AT_ONCE = 256


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


@dataclass(frozen=True)
class CentralEvaluator:
    """Scores models on data the server holds: simulations only."""

    task: Task
    test: Dataset
    validation: Dataset | None
    class_shares: Callable[[int], Tensor]  # a client's own mix of classes

    def __call__(self, method: Method, server: Tensors, profiles: list[Profile], store: ClientStore) -> Evaluation:
        models = method.models(server)
        test = self._shared(models, self.test)
        validation = self._shared(models, self.validation) if self.validation is not None else {}
        personal = self._personal(method, server, profiles, store)
        first = self.task.architectures[0]
        also = {name: self._shared({first: state}, self.test) for name, state in method.also(server).items()}
        if not models and personal:
            test = {"accuracy": personal["mean"], "class_accuracy": personal["class_mean"], "loss": personal["loss"]}
        finite = _models_finite(models) and test.get("non_finite", 0.0) == 0.0
        if not models and personal.get("non_finite", 0):
            finite = False  # what is scored are the personal models, and some of them say nothing
        return Evaluation(test, validation, personal, also, self._negative_variances(models), finite)

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
        for rows in every_row(self.test, AT_ONCE):
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

    def _negative_variances(self, models: Mapping[str, Tensors]) -> float:
        variances = [
            state[name]
            for architecture, state in models.items()
            for name in running(self.task.build(architecture, state), "running_var").values()
        ]
        return float(torch.cat(variances).lt(0).double().mean()) if variances else 0.0

    def _personal(self, method: Method, server: Tensors, profiles: list[Profile], store: ClientStore) -> Metrics:
        everywhere, classes, own, losses, broken = [], [], [], [], 0
        if not method.personal:
            return {}
        for client in store.holders():
            state = method.personalise(server, store.load(client))
            if state is None:
                continue
            model = self.task.build(profiles[client].architecture, state)
            scores = self.task.score([model], self.test)
            metrics = self.task.summarise(scores)
            everywhere.append(metrics["accuracy"])
            classes.append(metrics["class_accuracy"])
            losses.append(metrics["loss"])
            broken += metrics["non_finite"] > 0
            own.append(_own_accuracy(scores["confusion"], self.class_shares(client)))
        if not everywhere:
            return {}
        return {
            "clients": len(everywhere),
            "mean": fmean(everywhere),
            "std": stdev(everywhere) if len(everywhere) > 1 else 0.0,
            "min": min(everywhere),
            "max": max(everywhere),
            "class_mean": fmean(classes),
            "own_mean": fmean(own),
            "own_std": stdev(own) if len(own) > 1 else 0.0,
            "loss": fmean(losses),
            "non_finite": broken,
        }


def _models_finite(models: Mapping[str, Tensors]) -> bool:
    return all(all_finite(tensor) for state in models.values() for tensor in state.values())


def _own_accuracy(confusion: Tensor, shares: Tensor) -> float:
    """Accuracy on test data mixed as the client's own: recall per class, weighted by the client's class shares."""
    rows = confusion.sum(dim=1)
    recall = confusion.diagonal().double() / rows.clamp(min=1)
    weights = shares.double() * (rows > 0)
    return float((recall * weights).sum() / weights.sum()) if weights.sum() > 0 else float(torch.nan)
