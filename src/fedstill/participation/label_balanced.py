"""Label-balanced client sampling: the cohort's pooled class distribution approximates the fleet's.

Clients report the fraction of each class in their samples once (`labels` in the fleet's state are numbers of samples).
In a round the first client of the cohort is drawn at random; then, one by one, the candidate that brings the pooled
class distribution closest to the fleet's is added, by squared distance. Since the first is random, every client has a
chance, and cohorts differ even if all clients are candidates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from pydantic import Field

from fedstill.core.errors import InputError
from fedstill.core.participation_protocols import Survey
from fedstill.core.protocols import Exchange, RoundContext
from fedstill.core.task import Tensors
from fedstill.participation.policies import policies
from fedstill.participation.surveys import LabelMix, not_surveyed
from fedstill.participation.weighted import Weighted, check_candidates

MOST = 10_000  # largest cohort: every candidate is compared for every place


@policies.register("label-balanced")
class LabelBalanced(Weighted):
    """Samples clients whose pooled class distribution is close to that of the whole fleet."""

    candidates: int | None = Field(None, ge=1, description="number of candidates; unset: four times the cohort")
    noise: float = Field(
        0.0, ge=0, description="standard deviation of the noise that clients add to the share of each class"
    )

    @property
    def needs(self) -> frozenset[str]:
        return super().needs | {"labels"}

    def check(self, clients: int) -> None:
        super().check(clients)
        check_candidates(self.candidates, self.cohort(clients), clients)
        if self.cohort(clients) > MOST:
            raise InputError(
                f"label-balanced compares every candidate for every place: at most {MOST:,} clients a round, not"
                f" {self.cohort(clients):,}"
            )

    def exchanges(self, classes: int, models: Mapping[str, Tensors]) -> Sequence[Exchange]:
        return (LabelMix(classes, self.noise),)

    def survey(
        self, fleet: Tensors, eligible: np.ndarray, models: Mapping[str, Tensors], classes: int, context: RoundContext
    ) -> Survey | None:
        missing = not_surveyed(fleet, "labels", eligible)
        return Survey(LabelMix(classes, self.noise), missing.tolist()) if len(missing) else None

    def choose(self, candidates: np.ndarray, fleet: Tensors, clients: int, context: RoundContext) -> np.ndarray:
        number = self.cohort(clients)
        short = self.in_order(candidates, fleet, clients, context)[: self.candidates or 4 * number]
        if "labels" not in fleet:
            return np.sort(short[:number])
        everyone = fleet["labels"].numpy()
        goal = shares(np.nansum(everyone, axis=0))
        return np.sort(short[complementary(everyone[short], goal, min(number, len(short)))])


def complementary(counts: np.ndarray, goal: np.ndarray, number: int) -> list[int]:
    """Rows whose sum has class fractions near `goal`: the first row, then greedily; ties go to the earlier row.

    NaN rows, of clients without an accepted reply, come last and in their order.

    >>> rows = np.array([[6.0, 0.0], [9.0, 1.0], [0.0, 5.0], [1.0, 9.0]])
    >>> complementary(rows, np.array([0.5, 0.5]), 2)  # (6, 5) is nearer to half and half than (7, 9)
    [0, 2]
    """
    if not number:
        return []
    known = np.isfinite(counts).all(axis=1)
    mixes = np.where(known[:, None], counts, 0.0)
    chosen, pooled, left = [0], mixes[0], np.arange(len(counts)) > 0
    while len(chosen) < number:
        choice = np.flatnonzero(left & known)
        if len(choice):
            distances = np.square(shares(pooled + mixes[choice]) - goal).sum(axis=1)
            best = int(choice[np.argmin(distances)])
        else:
            best = int(np.flatnonzero(left)[0])
        chosen.append(best)
        pooled = pooled + mixes[best]
        left[best] = False
    return chosen


def shares(counts: np.ndarray) -> np.ndarray:
    """Counts divided by their sum along the last axis; zeros if the sum is zero."""
    total = counts.sum(axis=-1, keepdims=True)
    parts: np.ndarray = np.divide(counts, total, out=np.zeros_like(counts), where=total > 0)
    return parts
