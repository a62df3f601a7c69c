"""How often the audit's 95 % intervals hold the truth: `python -m benchmarks.coverage [--draws N]`.

Answers are drawn from a probit model with effects of seeds, of test samples, and of both together. Two models that are
compared find some of the same samples hard. The truth is the expected accuracy over new seeds and new test samples.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import exp, pi, sqrt
from statistics import NormalDist, fmean
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from fedstill.audit.comparisons import compared
from fedstill.audit.statistics import (
    Span,
    accuracy_span,
    correlation,
    paired_difference,
    r_interval,
    seed_difference,
    t_interval,
    widest_difference,
)

T = TypeVar("T")
Answers = npt.NDArray[np.float64]
ACCURACIES = (0.25, 0.7, 0.9, 0.97)
PAIRS = ((0.8, 0.75), (0.9, 0.9), (0.9, 0.5), (0.97, 0.95))
SIZES = (40, 80, 120)
SEEDS = (1, 2, 3, 5)
SPREADS = (0.0, 0.02, 0.04)  # standard deviation of the accuracy between trainings
SHARED = (0.5, 0.8, 0.95)  # of the latent variance: what all trainings find hard
ALIKE = (0.5, 0.9)  # correlation between two models of what they find hard
UNUSUAL = 0.96  # accuracies above this do not vary by more than two points


@dataclass(frozen=True)
class Coverage:
    """One kind of interval in several worlds: the share of draws in which it holds the truth."""

    what: str
    shares: tuple[float, ...]

    @property
    def row(self) -> tuple[str, str, str, str]:
        least, middle, most = min(self.shares), fmean(self.shares), max(self.shares)
        return self.what, *(f"{100 * value:.1f}" for value in (least, middle, most))


def table(draws: int, seed: int = 0, sizes: tuple[int, ...] = SIZES, seeds: tuple[int, ...] = SEEDS) -> list[Coverage]:
    """The coverage of every interval that the audit prints."""
    draw = np.random.default_rng(seed)
    return [*_accuracies(draw, draws, sizes, seeds), *_differences(draw, draws, sizes, seeds), *_others(draw, draws)]


def answers(
    draw: np.random.Generator, accuracy: float, hard: Answers, seeds: int, spread: float, shared: float
) -> Answers:
    """Right answers (draws x seeds x samples); `hard` has a standard normal effect for each draw and sample."""
    level = NormalDist().inv_cdf(accuracy)
    by_seed = spread / (exp(-level * level / 2) / sqrt(2 * pi))
    draws, samples = hard.shape
    latent = level * sqrt(1 + by_seed**2) + sqrt(shared) * hard[:, None]
    latent = (
        latent + draw.normal(0, by_seed, (draws, seeds, 1)) + draw.normal(0, sqrt(1 - shared), (draws, seeds, samples))
    )
    return np.asarray(latent > 0, dtype=float)


def _accuracies(
    draw: np.random.Generator, draws: int, sizes: tuple[int, ...], seeds: tuple[int, ...]
) -> Iterator[Coverage]:
    for number in seeds:
        found, alone = [], []
        for accuracy, samples, spread, shared in product(ACCURACIES, sizes, SPREADS, SHARED):
            # One seed cannot show how trainings vary: its interval is of this model.
            if (number == 1 and spread) or (accuracy > UNUSUAL and spread > SPREADS[1]):
                continue
            made = answers(draw, accuracy, draw.normal(size=(draws, samples)), number, spread, shared).mean(axis=2)
            found.append(_held(accuracy, [list(row) for row in made], lambda row, n=samples: accuracy_span(row, n)))
            if number > 2:
                alone.append(_held(accuracy, [list(row) for row in made], t_interval))
        yield Coverage(f"accuracy, {_seeds(number)}", tuple(found))
        if alone:
            yield Coverage(f"accuracy over seeds alone, {_seeds(number)}", tuple(alone))


def _differences(
    draw: np.random.Generator, draws: int, sizes: tuple[int, ...], seeds: tuple[int, ...]
) -> Iterator[Coverage]:
    for number in seeds:
        known, unknown = [], []
        for (first, second), samples, spread, shared, alike in product(PAIRS, sizes, SPREADS, SHARED, ALIKE):
            if (number == 1 and spread) or (first > UNUSUAL and spread > SPREADS[1]):
                continue
            hard = draw.normal(size=(draws, samples))
            other = alike * hard + sqrt(1 - alike**2) * draw.normal(size=(draws, samples))
            ours = answers(draw, first, hard, number, spread, shared)
            theirs = answers(draw, second, other, number, spread, shared)
            known.append(_held(first - second, list(ours - theirs), lambda one: paired_difference(one).span))
            printed = [(list(a), list(b)) for a, b in zip(ours.mean(axis=2), theirs.mean(axis=2), strict=True)]
            unknown.append(_held(first - second, printed, lambda one, n=samples: _without_answers(*one, n)))
        yield Coverage(f"difference, answers known, {_seeds(number)}", tuple(known))
        yield Coverage(f"difference, answers not known, {_seeds(number)}", tuple(unknown))


def _without_answers(first: list[float], second: list[float], samples: int) -> Span:
    if len(first) == 1:
        return widest_difference(first[0], second[0], samples).span
    return seed_difference(first, second, samples).span


def _others(draw: np.random.Generator, draws: int) -> Iterator[Coverage]:
    """Fisher's interval of r, and how often none of five equal methods is called better than another."""
    found = []
    for number, truth in product((4, 6, 13), (0.0, 0.8, 0.95)):
        pairs = draw.multivariate_normal([0, 0], [[1, truth], [truth, 1]], size=(draws, number))
        found.append(_held(truth, list(pairs), lambda one: _r_span(one)))
    yield Coverage("r, 4 to 13 teachers", tuple(found))
    equal = []
    for seeds, samples in product((2, 3, 5), (80, 1000)):
        hard = draw.normal(size=(draws, samples))
        made = np.stack([answers(draw, 0.8, hard, seeds, 0.02, 0.8).mean(axis=2) for _ in range(5)], axis=1)
        equal.append(fmean(not any(one.told_apart for one in compared(_by_seed(rows), samples)) for rows in made))
    yield Coverage("five equal methods: none told apart", tuple(equal))


def _r_span(points: Answers) -> Span:
    r = correlation(list(points[:, 0]), list(points[:, 1]))
    span = None if r is None else r_interval(r, len(points))
    return span or (-1.0, 1.0)


def _by_seed(rows: Answers) -> dict[str, dict[str, float]]:
    return {str(name): {str(seed): float(value) for seed, value in enumerate(row)} for name, row in enumerate(rows)}


def _held(truth: float, drawn: Sequence[T], interval: Callable[[T], Span]) -> float:
    spans = [interval(one) for one in drawn]
    return fmean(low - 1e-12 <= truth <= high + 1e-12 for low, high in spans)


def _seeds(number: int) -> str:
    return f"{number} seed{'' if number == 1 else 's'}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Simulate the coverage of the audit's intervals.")
    parser.add_argument("--draws", type=int, default=400, help="tables drawn for each setting")
    chosen = parser.parse_args()
    print("| interval | least | mean | most |\n|---|---|---|---|")
    for one in table(chosen.draws):
        print(f"| {' | '.join(one.row)} |")


if __name__ == "__main__":
    main()
