"""Ratios of times on a shared machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from statistics import median, quantiles
from time import perf_counter

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch computes with one thread meanwhile."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@dataclass(frozen=True)
class Ratio:
    """The median and the quartiles of paired ratios; the spread between quartiles is the noise."""

    middle: float
    low: float
    high: float

    @classmethod
    def of(cls, ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
        """
        >>> Ratio.of([1.0, 2.0, 9.0], [1.0, 1.0, 3.0])
        Ratio(middle=2.0, low=1.5, high=2.5)
        """
        each = [a / b for a, b in zip(ours, theirs, strict=True)]
        low, _, high = quantiles(each, n=4, method="inclusive") if len(each) > 1 else each * 3
        return cls(median(each), low, high)

    def __str__(self) -> str:
        return f"{self.middle:.3g}" if self.low == self.high else f"{self.middle:.3g} [{self.low:.3g}, {self.high:.3g}]"


def between(neighbours: Sequence[float]) -> list[float]:
    """Means of neighbouring measurements, which cancel a slow drift.

    >>> between([1.0, 3.0, 4.0])
    [2.0, 3.5]
    """
    return [(before + after) / 2 for before, after in pairwise(neighbours)]


def seconds(action: Callable[[], object], clock: Callable[[], float] = perf_counter) -> float:
    began = clock()
    action()
    return clock() - began


def interleave(
    repetitions: int, *actions: Callable[[], object], clock: Callable[[], float] = perf_counter
) -> list[list[float]]:
    """Seconds of each action in each repetition; every second repetition runs in reverse order.

    >>> order = []
    >>> times = interleave(2, lambda: order.append("a"), lambda: order.append("b"))
    >>> order, len(times), len(times[0])
    (['a', 'b', 'b', 'a'], 2, 2)
    """
    times: list[list[float]] = [[] for _ in actions]
    for repetition in range(repetitions):
        timed = list(zip(actions, times, strict=True))
        for action, taken in timed if repetition % 2 == 0 else reversed(timed):
            taken.append(seconds(action, clock))
    return times
