"""Intervals and correlations against known answers and against scipy.stats."""

from __future__ import annotations

from inspect import signature

import numpy as np
import pytest
import scipy.stats

from fedstill.audit.statistics import (
    correlation,
    paired_bootstrap,
    share_interval,
    t_interval,
    t_quantile,
    unpaired_interval,
)
from fedstill.core.streams import Streams


def test_the_quantiles_in_every_textbook() -> None:
    """Two-sided 95 %: 12.706, 4.303, 3.182, 2.776 and, with 30 degrees of freedom, 2.042."""
    assert [round(t_quantile(0.975, freedom), 3) for freedom in (1, 2, 3, 4, 30)] == [
        12.706,
        4.303,
        3.182,
        2.776,
        2.042,
    ]


def test_an_interval_over_seeds() -> None:
    """80, 83.75 and 63.75: mean 75.8333, deviation 10.6311, 4.30265 * 10.6311 / sqrt(3) = 26.409."""
    low, high = t_interval([80.0, 83.75, 63.75])
    assert (low, high) == (pytest.approx(75.83333 - 26.409, abs=2e-3), pytest.approx(75.83333 + 26.409, abs=2e-3))
    values = [0.1, 0.4, 0.35, 0.8, 0.75]
    theirs = scipy.stats.t.interval(0.95, 4, loc=np.mean(values), scale=scipy.stats.sem(values))
    assert t_interval(values) == pytest.approx(theirs)


def test_equal_seeds_give_an_interval_without_width() -> None:
    assert t_interval([0.25, 0.25, 0.25]) == (0.25, 0.25)


@pytest.mark.parametrize(("right", "samples"), [(20, 80), (0, 10), (10, 10), (1999, 2468)])
def test_the_interval_of_an_accuracy_agrees_with_scipy(right: int, samples: int) -> None:
    theirs = scipy.stats.binomtest(right, samples).proportion_ci(method="wilson")
    assert share_interval(right / samples, samples) == pytest.approx((theirs.low, theirs.high), abs=1e-9)


def test_correlation_agrees_with_scipy() -> None:
    draw = Streams(3).draw("correlation")
    first, second = draw.normal(size=13), draw.normal(size=13)
    assert correlation(list(first), list(second)) == pytest.approx(scipy.stats.pearsonr(first, second).statistic)


def test_correlation_by_hand() -> None:
    """Deviations (-1, 0, 1) and (-2, -1, 3): 5 / sqrt(2 * 14)."""
    assert correlation([1, 2, 3], [2, 3, 7]) == pytest.approx(5 / 28**0.5)


def test_where_a_correlation_says_nothing() -> None:
    assert correlation([0.1, 0.2], [0.3, 0.9]) is None
    assert correlation([0.1, 0.2, 0.3], [0.7, 0.7, 0.7]) is None
    third = (0.1 + 0.2) / 0.3 / 3  # a third, but for rounding
    assert correlation([0.1, 0.2, 0.3], [1 / 3, third, 1 / 3]) is None


def test_the_bootstrap_is_what_drawing_every_sample_gives() -> None:
    """Against a plain implementation that draws 200 samples at a time, and against scipy's percentile interval."""
    draw = Streams(1).draw("answers")
    differences = draw.choice([-1.0, 0.0, 1.0], p=[0.1, 0.5, 0.4], size=200)
    ours = paired_bootstrap(differences, Streams(1).draw("ours"), draws=40_000)
    plain = [float(draw.choice(differences, size=200).mean()) for _ in range(4_000)]
    assert ours == pytest.approx(tuple(np.quantile(plain, [0.025, 0.975])), abs=0.012)
    # scipy 1.15 has renamed the argument.
    name = "rng" if "rng" in signature(scipy.stats.bootstrap).parameters else "random_state"
    theirs = scipy.stats.bootstrap(
        (differences,), np.mean, method="percentile", n_resamples=4_000, **{name: np.random.default_rng(0)}
    ).confidence_interval
    assert ours == pytest.approx((theirs.low, theirs.high), abs=0.012)


def test_the_bootstrap_repeats_itself() -> None:
    differences = np.array([1.0, 0.0, 0.0, -1.0, 1.0])
    first, second = (paired_bootstrap(differences, Streams(0).draw("audit", "a")) for _ in range(2))
    assert first == second
    assert paired_bootstrap(np.ones(4), Streams(0).draw("audit", "a")) == (1.0, 1.0)


def test_the_widest_interval_holds_every_pairing() -> None:
    """90 and 60 right of 100: whichever samples they are, the bootstrap's interval lies inside but for the half samples
    added and the bootstrap's steps of one sample; at the worst pairing, both right on 50 alone, the two agree."""
    low, high = unpaired_interval(0.9, 0.6, 100)
    for together in (50, 55, 60):  # samples that both got right; the first is the fewest possible
        only_first, only_second = 90 - together, 60 - together
        differences = np.repeat([1.0, -1.0, 0.0], [only_first, only_second, 100 - only_first - only_second])
        inner = paired_bootstrap(differences, Streams(0).draw("pairing"))
        assert low <= inner[0] + 0.015
        assert inner[1] <= high + 0.015
        if together == 50:
            assert (low, high) == pytest.approx(inner, abs=0.02)


def test_perfect_students_do_not_give_an_interval_without_width() -> None:
    low, high = unpaired_interval(1.0, 1.0, 50)
    assert low < 0 < high
    assert high - low == pytest.approx(2 * 1.959964 * (1 / 52 / 52) ** 0.5, rel=1e-6)
