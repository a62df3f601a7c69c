"""The few statistics that an audit needs: a correlation, and 95 % intervals of means, shares and differences."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from statistics import NormalDist, fmean, stdev

import numpy as np
import numpy.typing as npt

LEVEL = 0.95
DRAWS = 10_000
Span = tuple[float, float]


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


def t_interval(values: Sequence[float]) -> Span:
    """The interval of a mean: mean -+ t s / sqrt(n), with n - 1 degrees of freedom.

    >>> low, high = t_interval([1.0, 2.0, 3.0])  # 2 -+ 4.3027 / sqrt(3)
    >>> round(low, 3), round(high, 3)
    (-0.484, 4.484)
    """
    middle = fmean(values)
    reach = t_quantile((1 + LEVEL) / 2, len(values) - 1) * stdev(values) / sqrt(len(values))
    return middle - reach, middle + reach


def t_quantile(probability: float, freedom: int) -> float:
    """The quantile of Student's t.

    >>> round(t_quantile(0.975, 2), 4)
    4.3027
    """
    from scipy.special import stdtrit  # type: ignore[import-untyped]  # here, because it takes half a second

    return float(stdtrit(freedom, probability))


def share_interval(share: float, samples: int) -> Span:
    """Wilson's interval of an accuracy measured on so many test samples.

    >>> low, high = share_interval(0.25, 80)
    >>> round(low, 3), round(high, 3)
    (0.168, 0.355)
    """
    score = NormalDist().inv_cdf((1 + LEVEL) / 2)
    shrink = 1 + score**2 / samples
    middle = (share + score**2 / (2 * samples)) / shrink
    reach = score * sqrt(share * (1 - share) / samples + score**2 / (4 * samples**2)) / shrink
    return middle - reach, middle + reach


def paired_bootstrap(differences: npt.NDArray[np.float64], generator: np.random.Generator, draws: int = DRAWS) -> Span:
    """The interval of a mean difference over test samples, `differences` having one entry for each.

    Both models meet the same samples, so samples are drawn, not models' answers. Differences take few values (-1, 0
    and 1 for one seed): how often each is drawn has a multinomial distribution, which is the bootstrap itself without
    drawing every sample.
    """
    values, counts = np.unique(differences, return_counts=True)
    samples = len(differences)
    means = generator.multinomial(samples, counts / samples, size=draws) @ values / samples
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def unpaired_interval(first: float, second: float, samples: int) -> Span:
    """The widest interval of a difference of accuracies on the same samples, where their pairing is not known.

    A share c of the samples is answered rightly by one model alone; the variance of the difference d is (c - d^2) / n,
    largest where the models agree as rarely as their accuracies allow: c = min(a + b, 2 - a - b). Half a sample is
    added to each of the four outcomes (Agresti and Min, 2005), so that no interval has width zero.

    >>> low, high = unpaired_interval(0.9, 0.3, 100)
    >>> round(low, 3), round(high, 3)
    (0.458, 0.718)
    """
    apart = (samples * min(first + second, 2 - first - second) + 1) / (samples + 2)
    middle = samples * (first - second) / (samples + 2)
    spread = sqrt(max(apart - middle**2, 0.0) / (samples + 2))
    reach = NormalDist().inv_cdf((1 + LEVEL) / 2) * spread
    return middle - reach, middle + reach
