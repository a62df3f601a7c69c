"""Clients' queries for classes, and the metrics of their outcomes.

A client's *local* classes are those it has samples of; a *query* is for classes that it has too few of, or recognises
badly.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from fedstill.core.errors import InputError
from fedstill.core.protocols import Method
from fedstill.core.sections import HasSections, Section, sections
from fedstill.core.streams import Streams

COLLAPSE = 0.2  # smallest loss of recall at which a class may count as collapsed
INPUT = "queries"  # the input that methods that learn from peers require


@sections.register("queries")
class Queries(Section):
    """Which clients query for which classes."""

    about = "who asks the federation for which classes"

    classes: Literal["single", "multi"] = Field(
        "single", description="whether each client queries one class or several"
    )
    under: int = Field(50, ge=1, description="a client may query a class of which it has fewer samples")
    by_hand: dict[int, tuple[int, ...]] = Field(
        default_factory=dict,
        description="queried classes by client, instead of a random draw; clients that are not listed query nothing",
    )
    below: float | None = Field(
        None,
        gt=0,
        le=1,
        description="instead, query the classes on which the recall of the client's own model is below this, on"
        " samples it did not train on; classes without samples are included",
    )

    def check_experiment(self, clients: int, classes: tuple[str, ...], method: type[Method]) -> None:
        self.check(clients, classes)
        if self.below is not None and INPUT not in method.wants:
            raise InputError(
                "queries.below is about the model that a client trains alone, which only methods between peers have:"
                " leave it out, or name the queries by hand"
            )

    def changes(self, method: type[Method]) -> bool:
        """Whether queries change the training: only for methods that learn from peers."""
        return INPUT in method.wants

    def written(self, name: str) -> tuple[list[str], list[str]]:
        """Settings that differ from the defaults; if none does, one default, so that the queries are not dropped."""
        options, held, usual = list[str](), self.model_dump(mode="json"), Queries().model_dump(mode="json")
        for client, classes in self.by_hand.items():
            if classes:  # an empty query equals an unlisted client, as long as some client is listed
                options += ["--query", f"{client}:{','.join(map(str, classes))}"]
        changed = {key: value for key, value in held.items() if key != "by_hand" and value != usual[key]}
        if not changed and not self.by_hand:
            changed = {"classes": self.classes}
        return options, [
            f"{name}.{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in changed.items()
        ]

    def check(self, clients: int, classes: Sequence[str]) -> None:
        for client, wanted in self.by_hand.items():
            if not 0 <= client < clients:
                raise InputError(f"a query is for client {client}, and clients are 0 to {clients - 1}")
            for number in wanted:
                if not 0 <= number < len(classes):
                    raise InputError(
                        f"client {client} asks for class {number}, and classes are 0 to {len(classes) - 1}:"
                        f" {', '.join(classes[:12])}{' ...' if len(classes) > 12 else ''}"
                    )

    def of(self, client: int, counts: Tensor, streams: Streams) -> tuple[int, ...]:
        """The query of a client with these class counts; drawn from its own stream.

        >>> Queries(by_hand={3: (7, 8)}).of(3, torch.zeros(10), Streams(0))
        (7, 8)
        >>> Queries().of(0, torch.tensor([500, 3, 500]), Streams(0))  # the only class with fewer than 50
        (1,)
        """
        if self.by_hand:
            return tuple(sorted(set(self.by_hand.get(client, ()))))
        scarce = torch.nonzero(counts < self.under).flatten().tolist()
        generator = streams.draw("query", client)
        order = generator.permutation(len(scarce))
        number = 1
        if self.classes == "multi" and len(scarce) > 1:
            number = int(generator.integers(2, len(scarce) + 1))
        return tuple(sorted(scarce[place] for place in order[:number]))


@dataclass(frozen=True)
class Answered:
    """The outcome of one client: recall of each class before and after, its class counts, and its query."""

    before: Tensor
    after: Tensor
    counts: Tensor
    query: tuple[int, ...]

    @property
    def local(self) -> Tensor:
        return self.counts > 0

    @property
    def asked(self) -> Tensor:
        asked = torch.zeros(len(self.counts), dtype=torch.bool)
        asked[list(self.query)] = True
        return asked

    @property
    def collapsed(self) -> tuple[int, ...]:
        """Local classes whose recall falls by at least 20 points, and to less than half of what it was.

        >>> before, after = torch.tensor([0.8, 0.9, 0.3, 0.0]), torch.tensor([0.1, 0.6, 0.2, 0.9])
        >>> Answered(before, after, torch.tensor([30, 10, 5, 0]), (3,)).collapsed
        (0,)
        """
        lost = (self.before - self.after >= COLLAPSE) & (self.after < self.before / 2) & self.local
        return tuple(torch.nonzero(lost).flatten().tolist())

    def accuracy(self, recalls: Tensor) -> float:
        """Mean recall: a local class is weighted by its fraction of the client's samples, a queried class by one."""
        weights = torch.where(self.asked, 1.0, self.counts.double() / self.counts.sum().clamp(min=1))
        return float((weights * recalls.double()).sum() / weights.sum())

    def metrics(self) -> dict[str, float]:
        """Accuracy, query gain, forgetting (zero or negative) and uniform accuracy.

        Example: two local classes of 30 and 10 samples, and one queried; weights 0.75, 0.25 and 1. Before (0.8, 0.6,
        0), after (0.9, 0.4, 0.5): accuracy (0.675 + 0.1 + 0.5) / 2, forgetting (0 - 0.2) / 2.

        >>> before, after = torch.tensor([0.8, 0.6, 0.0]), torch.tensor([0.9, 0.4, 0.5])
        >>> metrics = Answered(before, after, torch.tensor([30, 10, 0]), (2,)).metrics()
        >>> {name: round(value, 4) for name, value in metrics.items()}
        {'accuracy': 0.6375, 'before': 0.375, 'gain': 0.5, 'forgetting': -0.1, 'uniform': 0.6}
        """
        change = self.after.double() - self.before.double()
        forgotten = change[self.local].clamp(max=0)
        return {
            "accuracy": self.accuracy(self.after),
            "before": self.accuracy(self.before),
            "gain": float(change[self.asked].mean()),
            "forgetting": float(forgotten.mean()) if len(forgotten) else 0.0,  # no local classes: none
            "uniform": float(self.after.double()[self.local | self.asked].mean()),
        }


def averaged(answered: Sequence[Answered]) -> Mapping[str, float]:
    """The mean of each metric over clients with a query, and its standard deviation over them."""
    each = [one.metrics() for one in answered if one.query]
    if not each:
        return {}
    means = {name: fmean(metrics[name] for metrics in each) for name in each[0]}
    spread = stdev(metrics["accuracy"] for metrics in each) if len(each) > 1 else 0.0
    return {**means, "accuracy_std": spread, "clients": len(each)}


def recalls(confusion: Tensor) -> Tensor:
    """The recall of each class; a class without samples counts as not recognised.

    >>> recalls(torch.tensor([[3, 1], [0, 0]])).tolist()
    [0.75, 0.0]
    """
    return confusion.diagonal().double() / confusion.sum(dim=1).clamp(min=1)


def queries_of(experiment: HasSections) -> Queries | None:
    """The experiment's queries, if it has any."""
    section = experiment.section("queries")
    assert section is None or isinstance(section, Queries)
    return section
