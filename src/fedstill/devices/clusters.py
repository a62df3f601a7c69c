"""Clusters of clients with similar data, from a few statistics that each client sends.

Clients send statistics once: by default mean and standard deviation of all input values. The server standardises each
column to mean 0 and deviation 1 and runs k-means. Clusters are numbered by their first members, so that unchanged
clusters keep their numbers. The cluster of a client that was not surveyed yet is unknown, -1.

The number of clusters is given, or it is the one with the best mean silhouette; among those within 0.01 of the best,
the one with the best Davies-Bouldin index.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Self

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from fedstill.core.dataset import Dataset
from fedstill.core.egress import Egress, in_rounds
from fedstill.core.errors import InputError
from fedstill.core.participation_protocols import Survey
from fedstill.core.protocols import Reply, RoundContext
from fedstill.core.sections import HasSections, Section, sections
from fedstill.core.task import Tensors
from fedstill.participation.surveys import Measurement, label_shares, moments, not_surveyed, unknown

STARTS = 10  # of k-means; the best result is used
TIE = 0.01  # silhouettes that differ by less count as equal
LOOKED_AT = 2000  # clients in a silhouette: it compares all pairs
WORDS = {"mean": "mean", "std": "standard deviation", "skewness": "skewness"}


@sections.register("clusters")
class Clusters(Section):
    """The settings of the clustering of clients."""

    about = "clients grouped by what their data is like; left out, they are not"
    participation = "clusters"
    for_many = True

    number: int | None = Field(None, ge=1, description="number of clusters; unset: chosen by silhouette")
    most: int = Field(8, ge=2, description="largest number of clusters that is tried if it is unset")
    statistics: tuple[Literal["mean", "std", "skewness"], ...] | Literal["labels"] = Field(
        ("mean", "std"),
        description="statistics that a client sends: mean, std or skewness of its inputs; or labels, the share of"
        " each class",
    )
    noise: float = Field(
        0.0, ge=0, description="standard deviation of the noise that a client adds to these statistics"
    )
    every: int | None = Field(
        None,
        ge=1,
        description="rounds between surveys, after which clusters are recomputed; unset: each client is surveyed once",
    )

    @model_validator(mode="after")
    def _some_statistics_once(self) -> Self:
        names = self.statistics
        if names != "labels" and (not names or len(set(names)) < len(names)):
            raise ValueError("statistics names each of mean, std, skewness at most once, and at least one of them")
        return self

    def check(self, clients: int) -> None:
        """Refuse settings that cannot work with this number of clients."""
        if self.number is not None and self.number > clients:
            raise InputError(f"clusters.number is {self.number}, but there are only {clients} clients")

    @property
    def needs(self) -> frozenset[str]:
        """What an experiment must provide."""
        return frozenset({"labels"} if self.statistics == "labels" else ())

    def start(self, clients: int, classes: int) -> Tensors:
        """The fleet's state before the first survey."""
        return {"cluster": torch.full((clients,), -1), "statistics": unknown(clients, self.width(classes))}

    def width(self, classes: int) -> int:
        """The number of statistics that a client sends."""
        return classes if self.statistics == "labels" else len(self.statistics)

    def exchange(self, classes: int) -> Statistics:
        """The exchange, for manifests, for sites and for `survey`."""
        return Statistics(self, classes)

    def survey(self, fleet: Tensors, available: np.ndarray, classes: int, context: RoundContext) -> Survey | None:
        """The clients to survey in this round: those not surveyed yet, and all of them in a repeated survey."""
        again = self.every is not None and context.round % self.every == 0
        surveyed = available if again else not_surveyed(fleet, "statistics", available)
        return Survey(self.exchange(classes), surveyed.tolist()) if len(surveyed) else None

    def assign(self, fleet: Tensors, context: RoundContext) -> Tensors:
        """The fleet state with a cluster for every client with known statistics."""
        statistics = fleet["statistics"].numpy()
        known = np.flatnonzero(np.isfinite(statistics).all(axis=1))
        cluster = torch.full((len(statistics),), -1)
        if len(known):
            seed = int(context.streams.draw("clusters").integers(2**31))
            cluster[known] = torch.from_numpy(grouped(statistics[known], self.number, self.most, seed))
        return {**fleet, "cluster": cluster}


class Statistics(Measurement):
    """The exchange in which clients send statistics of their data, from which clusters are computed."""

    name = "statistics"
    table = "statistics"

    def __init__(self, clusters: Clusters, classes: int) -> None:
        super().__init__(clusters.width(classes), clusters.noise)
        self.clusters = clusters
        if clusters.statistics == "labels":
            self.egress = self.declared("the share of each class among the client's labels")
        else:
            words = ", ".join(WORDS[name] for name in clusters.statistics)
            self.egress = self.declared(f"{words} of all numbers in the client's inputs")

    def when(self, line: Egress, rounds: int) -> str:
        every = self.clusters.every
        return super().when(line, rounds) if every is None else in_rounds(range(0, rounds, every), rounds)

    def measure(self, data: Dataset) -> Tensor:
        if self.clusters.statistics == "labels":
            return label_shares(data, self.width)
        found = moments(data)
        return torch.stack([found[name] for name in self.clusters.statistics])

    def aggregate(self, state: Tensors, replies: Sequence[Reply], context: RoundContext) -> Tensors:
        return self.clusters.assign(super().aggregate(state, replies, context), context)


def grouped(table: np.ndarray, number: int | None, most: int, seed: int) -> np.ndarray:
    """The cluster of each row, numbered by first member; at most as many as there are distinct rows.

    >>> grouped(np.array([[5.0], [0.0], [5.1], [0.2]]), 2, 8, 0).tolist()
    [0, 1, 0, 1]
    """
    points = standardised(table)
    different = len(np.unique(points, axis=0))
    if number is not None:
        return numbered(_k_means(points, min(number, different), seed))
    # A silhouette needs two clusters, one of which has at least two members.
    tried = range(2, min(most, different, len(points) - 1) + 1)
    found = [numbered(_k_means(points, count, seed)) for count in tried]
    if not found:
        return np.zeros(len(points), dtype=np.int64)
    return found[_best(points, found)]


def standardised(table: np.ndarray) -> np.ndarray:
    """Columns standardised to mean 0 and deviation 1; a constant column becomes 0."""
    centred = table - table.mean(axis=0)
    deviation = centred.std(axis=0)
    # Rounding leaves a small deviation in a constant column: compare it with the size of the values.
    same = deviation <= 1e-12 * np.abs(table).max(axis=0)
    return np.where(same, 0.0, centred / np.where(same, 1.0, deviation))


def numbered(labels: np.ndarray) -> np.ndarray:
    """The same clusters, numbered in the order of their first members.

    >>> numbered(np.array([2, 0, 2, 1])).tolist()
    [0, 1, 0, 2]
    """
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse]


def _k_means(points: np.ndarray, count: int, seed: int) -> np.ndarray:
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    if count == 1:
        return np.zeros(len(points), dtype=np.int64)
    with threadpool_limits(1):  # another order of summation could give other bits
        labels: np.ndarray = KMeans(count, n_init=STARTS, random_state=seed).fit(points).labels_
    return labels.astype(np.int64)


def _best(points: np.ndarray, found: list[np.ndarray]) -> int:
    """The clustering to use; ties go to the one with the fewest clusters."""
    from sklearn.metrics import davies_bouldin_score, silhouette_score
    from threadpoolctl import threadpool_limits

    rows = np.arange(len(points))
    if len(points) > LOOKED_AT:
        rows = rows[:: -(-len(points) // LOOKED_AT)]
    with threadpool_limits(1):
        silhouettes = np.array(
            [
                silhouette_score(points[rows], labels[rows]) if 1 < len(np.unique(labels[rows])) < len(rows) else -1.0
                for labels in found
            ]
        )
        near = np.flatnonzero(silhouettes >= silhouettes.max() - TIE)
        if len(near) == 1:
            return int(near[0])
        return int(near[np.argmin([davies_bouldin_score(points, found[index]) for index in near])])


def clusters_section(experiment: HasSections) -> Clusters | None:
    """The experiment's clustering of clients, if it has one."""
    section = experiment.section("clusters")
    assert section is None or isinstance(section, Clusters)
    return section
