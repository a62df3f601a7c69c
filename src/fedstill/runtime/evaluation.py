"""Evaluation of the shared models and, where a method has them, of each client's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import torch
from torch import Tensor

from fedstill.core.dataset import Dataset, Subset, column, every_row, kept_batch
from fedstill.core.kinds import running
from fedstill.core.metric_records import FurtherMetrics
from fedstill.core.protocols import Method, Profile
from fedstill.core.records import Evaluation, PersonalMetrics
from fedstill.core.task import Task, Tensors
from fedstill.runtime.client_store import ClientStore
from fedstill.runtime.reply_validation import all_finite

Metrics = Mapping[str, float]
Scores = Mapping[str, Tensor]


@dataclass(frozen=True)
class CentralEvaluator:
    """Scores models on data the server holds: simulations only."""

    task: Task
    test: Dataset
    validation: Dataset | None
    class_counts: Callable[[int], Tensor]  # a client's own samples of each class
    sites: tuple[str, ...] = ()  # names, where test samples have the site that they are of
    clients_are_sites: bool = False  # whether the client of a number is the site of that number

    def __call__(self, method: Method, server: Tensors, profiles: Sequence[Profile], store: ClientStore) -> Evaluation:
        models = method.models(server)
        scores = self._scores(models, self.test)
        kept = self._scores(models, self.validation) if self.validation is not None else []
        test, validation = self._summary(scores), self._summary(kept)
        mine, own = self._personal(method, server, profiles, store)
        every = [self.task.summarise(one) for one in mine]
        personal = spread_of(every, own)
        first = self.task.architectures[0]
        extra = {name: self._shared({first: state}, self.test) for name, state in method.extra_models(server).items()}
        if len(models) > 1:
            extra |= {name: self._shared({name: state}, self.test) for name, state in models.items()}
        if not models and every:
            test = means_of(self.task, every)
        finite = all_finite_models(models, test, personal)
        return Evaluation(
            finite=finite,
            test=dict(test),
            validation=dict(validation),
            personal=personal,
            extra_models={name: dict(metrics) for name, metrics in extra.items()},
            negative_variances=negative_variances(self.task, models),
            by_site=self._by_site(method, server, profiles, store) or None,
            further=further_metrics(self.task, scores if models else mine, kept),
        )

    def _by_site(
        self, method: Method, server: Tensors, profiles: Sequence[Profile], store: ClientStore
    ) -> dict[str, dict[str, float]]:
        """Every site's test samples alone: metrics of its own model, else of the shared one."""
        sites = column(self.test, "site") if self.sites else None
        if sites is None:
            return {}
        found: dict[str, dict[str, float]] = {}
        holders = set(store.holders()) if method.personal and self.clients_are_sites else set()
        for number, name in enumerate(self.sites):
            rows = (sites == number).nonzero().flatten()
            own = method.personalise(server, store.load(number)) if number in holders else None
            part = Subset(self.test, rows)
            if not len(rows):
                continue
            if own is None:
                scores = self._scores(method.models(server), part)
            else:
                scores = [self.task.score([method.assemble(profiles[number].architecture, own)], part)]
            if scores:
                beside = _mean_overall(self.task, scores)
                found[name] = {**self._summary(scores), **beside, "samples": float(len(rows))}
        return found

    def test_metrics(self, models: Mapping[str, Tensors]) -> Metrics:
        """Metrics of these models on the test data, or their mean over architectures."""
        return self._shared(models, self.test)

    def truth(self) -> list[int] | None:
        """The label of every test sample; None where a sample has several."""
        labels = self.test.labels()
        return None if labels is None or labels.ndim > 1 else labels.tolist()

    def predictions(self, models: Mapping[str, Tensors]) -> list[int] | None:
        """The predicted class of every test sample, -1 where the output is not finite; None without single classes."""
        if len(models) != 1 or self.truth() is None:
            return None
        ((architecture, state),) = models.items()
        model = self.task.build(architecture, state).eval()
        said = []
        for rows in every_row(self.test):
            with torch.inference_mode():
                said.append(self.task.forward(model, kept_batch(self.test, rows)).log_probabilities.cpu())
        logits = torch.cat(said)
        return torch.where(logits.isfinite().all(dim=1), logits.argmax(dim=1), -1).tolist()

    def _shared(self, models: Mapping[str, Tensors], data: Dataset) -> Metrics:
        """Metrics of the shared model, or their mean over architectures."""
        return self._summary(self._scores(models, data))

    def _scores(self, models: Mapping[str, Tensors], data: Dataset) -> list[Scores]:
        """The scores of each shared model."""
        return [self.task.score([self.task.build(name, state)], data) for name, state in models.items()]

    def _summary(self, scores: Sequence[Scores]) -> Metrics:
        """Metrics from these scores, or their mean."""
        each = [self.task.summarise(one) for one in scores]
        return {name: fmean(metrics[name] for metrics in each) for name in each[0]} if each else {}

    def _personal(
        self, method: Method, server: Tensors, profiles: Sequence[Profile], store: ClientStore
    ) -> tuple[list[Scores], list[float]]:
        """Scores of every client's own model on all test data, and accuracies on each client's own mix of classes."""
        every: list[Scores] = []
        own: list[float] = []
        for client in store.holders() if method.personal else ():
            state = method.personalise(server, store.load(client))
            if state is None:
                continue
            model = method.assemble(profiles[client].architecture, state)
            scores = self.task.score([model], self.test)
            every.append(scores)
            own.append(self.task.on_mix(scores, self.class_counts(client)))
        return every, own


def further_metrics(
    task: Task, test: Sequence[Scores], validation: Sequence[Scores] = (), sites: Mapping[int, Scores] | None = None
) -> FurtherMetrics | None:
    """Metrics beside accuracy and loss, as means over the models scored; None where the task has none."""
    found = {name: _mean_overall(task, scores) for name, scores in (("test", test), ("validation", validation))}
    if not found["test"]:
        return None
    each = {site: {**task.summarise(one), **_mean_overall(task, [one])} for site, one in (sites or {}).items()}
    return FurtherMetrics(**found, sites=each or None)


def _mean_overall(task: Task, scores: Sequence[Scores]) -> dict[str, int | float]:
    """A metric that is not defined for some of the models is left out."""
    each = [found.overall for one in scores if (found := task.class_metrics(one)) is not None]
    names = each[0] if each else {}
    return {name: fmean(one[name] for one in each) for name in names if all(name in one for one in each)}


def spread_of(every: Sequence[Metrics], own: Sequence[float]) -> PersonalMetrics | None:
    """Metrics of clients' own models, and their accuracies on each client's own mix of classes; None without any."""
    if not every:
        return None
    accuracies = [metrics["accuracy"] for metrics in every]
    return PersonalMetrics(
        clients=len(every),
        mean=fmean(accuracies),
        std=stdev(accuracies) if len(every) > 1 else 0.0,
        min=min(accuracies),
        max=max(accuracies),
        class_mean=fmean(metrics["class_accuracy"] for metrics in every),
        own_mean=fmean(own),
        own_std=stdev(own) if len(own) > 1 else 0.0,
        loss=fmean(metrics["loss"] for metrics in every),
        non_finite=sum(metrics["non_finite"] > 0 for metrics in every),
    )


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


def all_finite_models(models: Mapping[str, Tensors], test: Metrics, personal: PersonalMetrics | None) -> bool:
    """Whether what is scored is finite: the shared models or, where there are none, all of the clients' own."""
    if any(not all_finite(tensor) for state in models.values() for tensor in state.values()):
        return False
    return test.get("non_finite", 0.0) == 0.0 and (bool(models) or personal is None or not personal.non_finite)
