"""Which of several results differ: paired t tests for all pairs, corrected for their number, and what they can find."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean, variance

from fedstill.audit.evidence import Seed
from fedstill.audit.statistics import LEVEL, Estimate, item_variance, over_both, t_quantile, t_tail

BySeed = Mapping[Seed, float]
POWER = 0.8  # with which a difference of the minimal detectable size is found
UNLIKE = 0.05  # level of the F test by which two results vary more than the others


@dataclass(frozen=True)
class PairedComparison:
    """Two results over the seeds that all have; the first is the better one."""

    first: str
    second: str
    gap: Estimate
    p: float  # two-sided, corrected for the number of comparisons

    @property
    def told_apart(self) -> bool:
        return self.p < 1 - LEVEL


def compared(results: Mapping[str, BySeed], samples: int) -> list[PairedComparison]:
    """All pairs, since which of them is first is seen in the same figures; none without two common seeds.

    The model is additive in result and seed. Its residual variance is pooled over all results, unless an F test shows
    that two of them vary more than that; their own is used then. The test set adds to it (`item_variance`).
    """
    ranked = sorted(results, key=lambda name: -fmean(results[name].values()))
    seeds = [seed for seed in results[ranked[0]] if all(seed in results[name] for name in ranked)] if ranked else []
    if len(seeds) < 2 or len(ranked) < 2:
        return []
    values = {name: [results[name][seed] for seed in seeds] for name in ranked}
    pooled, freedom = _residual(list(values.values()))
    pairs = list(combinations(ranked, 2))
    gaps = [_gap(values[first], values[second], pooled, freedom, samples) for first, second in pairs]
    raw = [2 * t_tail(abs(gap.middle) / gap.error, gap.freedom) if gap.error else float(not gap.middle) for gap in gaps]
    return [PairedComparison(*pair, gap, p) for pair, gap, p in zip(pairs, gaps, holm(raw), strict=True)]


def holm(values: Sequence[float]) -> list[float]:
    """Probabilities corrected for their number (Holm, 1979).

    >>> [round(value, 3) for value in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    corrected = [1.0] * len(values)
    least = 0.0
    for rank, place in enumerate(sorted(range(len(values)), key=lambda one: values[one])):
        least = max(least, min(1.0, (len(values) - rank) * values[place]))
        corrected[place] = least
    return corrected


def detectable(comparison: PairedComparison, comparisons: int) -> float:
    """The difference that such a comparison, one of so many, finds in four of five repetitions."""
    gap = comparison.gap
    tail = (1 - LEVEL) / (2 * comparisons)
    return gap.error * (t_quantile(1 - tail, gap.freedom) + t_quantile(POWER, gap.freedom))


def _residual(rows: Sequence[Sequence[float]]) -> tuple[float, int]:
    """The residual variance of a table of results by seeds, and its degrees of freedom."""
    middle = fmean(value for row in rows for value in row)
    by_seed = [fmean(column) - middle for column in zip(*rows, strict=True)]
    left = [value - fmean(row) - seed for row in rows for value, seed in zip(row, by_seed, strict=True)]
    freedom = (len(rows) - 1) * (len(by_seed) - 1)
    return sum(value * value for value in left) / freedom, freedom


def _gap(first: Sequence[float], second: Sequence[float], pooled: float, freedom: int, samples: int) -> Estimate:
    seeds = len(first)
    own = variance([a - b for a, b in zip(first, second, strict=True)])
    spread, degrees = 2 * pooled, freedom
    if own > spread and _varies_more(own / spread if spread else float("inf"), seeds - 1, freedom):
        spread, degrees = own, seeds - 1
    by_sample = item_variance(fmean(first), fmean(second), samples) if samples else 0.0
    error, degrees_of_both = over_both(spread / seeds, degrees + 1, by_sample, samples)
    return Estimate(fmean(first) - fmean(second), error, degrees_of_both)


def _varies_more(ratio: float, ours: int, theirs: int) -> bool:
    from scipy.special import fdtrc  # type: ignore[import-untyped]  # here, because it takes half a second

    return bool(fdtrc(ours, theirs, ratio) < UNLIKE)
