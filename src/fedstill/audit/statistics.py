"""The few statistics that an audit needs: a correlation, and 95 % intervals of means, shares and differences.

Accuracies vary with seeds (training) and with test samples. An interval includes both where both are known. Its
coverage is simulated by `python -m benchmarks.coverage`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import atanh, hypot, inf, isinf, sqrt, tanh
from statistics import NormalDist, fmean, stdev, variance

import numpy as np
import numpy.typing as npt

from fedstill.audit.evidence import Score

LEVEL = 0.95
SHARED = 0.75  # of the sampling variance of an accuracy: the most that separate trainings have in common
APART = 0.4  # of the sampling variance of two independent test sets, in a difference on one test set
OWN = 0.5  # of the same: the least by which differences of two seeds vary, since two hardly show it
FEWEST_POINTS = 4  # of a correlation: three lie near a line too often
Span = tuple[float, float]


@dataclass(frozen=True)
class Estimate:
    """A mean with its standard error and the degrees of freedom of Student's t."""

    middle: float
    error: float
    freedom: float

    @property
    def span(self) -> Span:
        reach = self.error * t_quantile((1 + LEVEL) / 2, self.freedom)
        return self.middle - reach, self.middle + reach


def correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Pearson's r; None where it says nothing: fewer than three points, or one side that does not vary.

    >>> correlation([1, 2, 3], [1, 3, 2])
    0.5
    >>> correlation([1, 2], [3, 5]) is None  # two points always lie on a line
    True
    """
    if len(first) < 3:
        return None
    means = fmean(first), fmean(second)
    here, there = ([value - mean for value in side] for side, mean in zip((first, second), means, strict=True))
    squares = [sum(value * value for value in side) for side in (here, there)]
    # Equal accuracies differ by rounding once they have been averaged; that is not variation.
    if min(squares) < 1e-18 * len(first):
        return None
    return sum(a * b for a, b in zip(here, there, strict=True)) / sqrt(squares[0] * squares[1])


def r_interval(r: float, points: int) -> Span | None:
    """Fisher's 95 % interval of a correlation; None for fewer than four points.

    >>> low, high = r_interval(0.99, 13)
    >>> round(low, 3), round(high, 3)
    (0.966, 0.997)
    """
    if points < FEWEST_POINTS:
        return None
    reach = normal_quantile() / sqrt(points - 3)
    middle = atanh(max(min(r, 1 - 1e-12), -1 + 1e-12))
    return tanh(middle - reach), tanh(middle + reach)


def t_interval(values: Sequence[float]) -> Span:
    """The interval of a mean: mean -+ t s / sqrt(n), with n - 1 degrees of freedom.

    >>> low, high = t_interval([1.0, 2.0, 3.0])  # 2 -+ 4.3027 / sqrt(3)
    >>> round(low, 3), round(high, 3)
    (-0.484, 4.484)
    """
    return over_seeds(values).span


def over_seeds(values: Sequence[float]) -> Estimate:
    """A mean over seeds alone: on this test set."""
    return Estimate(fmean(values), stdev(values) / sqrt(len(values)), len(values) - 1.0)


def seed_noise(cells: Sequence[Mapping[str, Score]]) -> float | None:
    """The standard deviation over seeds, pooled over cells with several seeds; None without any."""
    found = [variance([score.accuracy for score in cell.values()]) for cell in cells if len(cell) > 1]
    return sqrt(fmean(found)) if found else None


def normal_quantile(probability: float = (1 + LEVEL) / 2) -> float:
    return NormalDist().inv_cdf(probability)


def t_tail(value: float, freedom: float) -> float:
    """The probability that Student's t is above this value.

    >>> round(t_tail(4.3027, 2), 4), round(t_tail(1.959964, inf), 4)
    (0.025, 0.025)
    """
    if isinf(freedom):
        return NormalDist().cdf(-value)
    from scipy.special import stdtr  # type: ignore[import-untyped]  # here, because it takes half a second

    return float(stdtr(freedom, -value))


def t_quantile(probability: float, freedom: float) -> float:
    """The quantile of Student's t; of the normal distribution for infinitely many degrees of freedom.

    >>> round(t_quantile(0.975, 2), 4)
    4.3027
    """
    if isinf(freedom):
        return normal_quantile(probability)
    from scipy.special import stdtrit  # here, because it takes half a second

    return float(stdtrit(freedom, probability))


def share_interval(share: float, samples: float, quantile: float | None = None) -> Span:
    """Wilson's interval of an accuracy measured on so many test samples.

    >>> low, high = share_interval(0.25, 80)
    >>> round(low, 3), round(high, 3)
    (0.168, 0.355)
    """
    score = normal_quantile() if quantile is None else quantile
    shrink = 1 + score**2 / samples
    middle = (share + score**2 / (2 * samples)) / shrink
    reach = score * sqrt(share * (1 - share) / samples + score**2 / (4 * samples**2)) / shrink
    return middle - reach, middle + reach


def accuracy_span(values: Sequence[float], samples: int) -> Span:
    """The interval of a mean accuracy of several trainings over new trainings and new test samples.

    Seeds contribute s^2 / S. Test samples that all seeds share contribute p (1 - p) / n, less what s^2 contains of it
    already: s^2, but at most a quarter, since trainings share at most three quarters of it (`SHARED`). The limits of
    Wilson's interval for the second part and of the t interval for the first are added in quadrature.

    >>> low, high = accuracy_span([0.0625, 0.0625, 0.0625], 80)  # equal seeds: the interval of 5 in 80
    >>> round(low, 3), round(high, 3)
    (0.027, 0.14)
    """
    middle = fmean(values)
    one = middle * (1 - middle) / samples
    if len(values) < 2 or not one:
        return share_interval(middle, samples)
    by_seed = variance(values)
    by_sample = one - min(by_seed, (1 - SHARED) * one)
    _, freedom = over_both(by_seed / len(values), len(values), by_sample, samples)
    quantile = t_quantile((1 + LEVEL) / 2, freedom)
    low, high = share_interval(middle, samples * one / by_sample, quantile)
    reach = quantile * sqrt(by_seed / len(values))
    return middle - hypot(middle - low, reach), middle + hypot(high - middle, reach)


def over_both(by_seed: float, seeds: float, by_sample: float, samples: int) -> tuple[float, float]:
    """The standard error of a mean with these two parts of its variance, and its degrees of freedom (Satterthwaite).

    >>> over_both(0.0, 3, 0.0004, 101)
    (0.02, 100.0)
    """
    total = by_seed + by_sample
    parts = by_seed**2 / max(seeds - 1, 1) + by_sample**2 / max(samples - 1, 1)
    return sqrt(total), total**2 / parts if parts else float(samples)


def paired_difference(differences: npt.NDArray[np.float64]) -> Estimate:
    """The mean of differences by seed and test sample (-1, 0 or 1), over new seeds and new test samples.

    The variance of means by sample, with one sample added on which the models differ and one on which they do not (of
    one seed this is Agresti and Min's interval, 2005), and for several seeds that of means by seed.
    """
    seeds, samples = differences.shape
    by_sample, by_seed = differences.mean(axis=0), differences.mean(axis=1)
    middle = float(differences.mean()) * samples / (samples + 2)
    apart = (float(by_sample @ by_sample) + 1) / (samples + 2)
    spread = (apart - middle**2) / (samples + 2)
    if seeds < 2:
        return Estimate(middle, sqrt(spread), inf)
    between = float(by_seed.var(ddof=1))
    if seeds == 2:  # which often agree by accident: at least what single answers make them differ by
        between = max(between, float(differences.var(axis=0, ddof=1).mean()) / samples)
    return Estimate(middle, *over_both(between / seeds, seeds, spread, samples))


def seed_difference(
    first: Sequence[float], second: Sequence[float], samples: int, others: Sequence[float] = ()
) -> Estimate:
    """The mean difference of two models' accuracies, paired by seed, where answers to single samples are not known.

    What all seeds have in common because of the test set cannot be seen in their accuracies: see `item_variance`. Two
    seeds hardly show how much seeds vary: `others` are such variances of other pairs with two seeds, with which that of
    this pair is pooled; the larger of its own and the pooled one is used, and at least half of what two models would
    vary by that answer new samples each time.
    """
    differences = [a - b for a, b in zip(first, second, strict=True)]
    by_seed, freedom = variance(differences), len(differences) - 1
    if freedom == 1 and others:
        by_seed, freedom = max(by_seed, fmean([by_seed, *others])), 1 + len(others)
    if len(differences) == 2:
        independent = sum(mean * (1 - mean) for mean in (fmean(first), fmean(second))) / samples
        by_seed = max(by_seed, OWN * independent)
    by_sample = item_variance(fmean(first), fmean(second), samples)
    parts = over_both(by_seed / len(differences), freedom + 1, by_sample, samples)
    return Estimate(fmean(differences), *parts)


def item_variance(first: float, second: float, samples: int) -> float:
    """The variance that a test set adds to a difference of two accuracies on it, by assumption.

    0.4 of what two independent test sets would add (two trained models find mostly the same samples hard), and at
    least three quarters of what the accuracies force: d - d^2, where one model is right wherever the other is.
    """
    independent = first * (1 - first) + second * (1 - second)
    gap = abs(first - second)
    least = SHARED * (gap - gap**2)
    return (max(APART * independent, least) + 1 / (samples + 2)) / (samples + 2)


def widest_difference(first: float, second: float, samples: int) -> Estimate:
    """The widest interval of a difference of accuracies on the same samples, where their pairing is not known.

    A share c of the samples is answered rightly by one model alone; the variance of the difference d is (c - d^2) / n,
    largest where the models agree as rarely as their accuracies allow: c = min(a + b, 2 - a - b). Half a sample is
    added to each of the four outcomes (Agresti and Min, 2005), so that no interval has width zero.

    >>> low, high = widest_difference(0.9, 0.3, 100).span
    >>> round(low, 3), round(high, 3)
    (0.458, 0.718)
    """
    apart = (samples * min(first + second, 2 - first - second) + 1) / (samples + 2)
    middle = samples * (first - second) / (samples + 2)
    spread = sqrt(max(apart - middle**2, 0.0) / (samples + 2))
    return Estimate(middle, spread, inf)
