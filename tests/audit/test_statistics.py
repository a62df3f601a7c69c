"""Intervals and correlations against known answers and against scipy.stats."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from fedstill.audit.statistics import (
    accuracy_span,
    correlation,
    over_both,
    paired_difference,
    seed_difference,
    share_interval,
    t_interval,
    t_quantile,
    t_tail,
    widest_difference,
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


def test_equal_seeds_on_80_samples_have_an_interval() -> None:
    """Three seeds of 5 right in 80 (6.25 %) share one test set: about Wilson's interval for 5 of 80."""
    low, high = accuracy_span([0.0625] * 3, 80)
    one = scipy.stats.binomtest(5, 80).proportion_ci(method="wilson")
    assert (low, high) == pytest.approx((one.low, one.high), abs=0.002)
    assert high - low > 0.1


def test_an_interval_over_seeds_and_samples_by_hand() -> None:
    """0.5 and 0.7 on 100 samples: s^2 = 0.02, p = 0.6; 0.02 / 2 + 0.0024 - 0.0006 = 0.0118."""
    error, freedom = over_both(0.01, 2, 0.0018, 100)
    assert (error**2, freedom) == pytest.approx((0.0118, 0.0118**2 / (0.0001 + 0.0018**2 / 99)))
    quantile = t_quantile(0.975, freedom)
    low, high = share_interval(0.6, 0.24 / 0.0018, quantile)
    seeds = quantile * 0.1
    expected = 0.6 - ((0.6 - low) ** 2 + seeds**2) ** 0.5, 0.6 + ((high - 0.6) ** 2 + seeds**2) ** 0.5
    assert accuracy_span([0.5, 0.7], 100) == pytest.approx(expected)


def test_a_large_test_set_leaves_the_interval_over_seeds() -> None:
    values = [0.80, 0.84, 0.79, 0.83]
    assert accuracy_span(values, 10**9) == pytest.approx(t_interval(values), abs=1e-4)


def test_one_seed_gives_the_interval_of_agresti_and_min() -> None:
    """40 won, 10 lost, 50 tied: d = 30/102, discordant share (50 + 1)/102."""
    answers = np.repeat([1.0, -1.0, 0.0], [40, 10, 50])[None]
    middle = 30 / 102
    reach = 1.959964 * ((51 / 102 - middle**2) / 102) ** 0.5
    assert paired_difference(answers).span == pytest.approx((middle - reach, middle + reach))


def test_the_widest_interval_holds_every_pairing() -> None:
    """90 and 60 right of 100: whichever samples they are, the interval with answers known lies inside, and is the same
    where both are right on as few samples as possible."""
    low, high = widest_difference(0.9, 0.6, 100).span
    for together in (50, 55, 60):  # samples that both got right; the first is the fewest possible
        only_first, only_second = 90 - together, 60 - together
        answers = np.repeat([1.0, -1.0, 0.0], [only_first, only_second, 100 - only_first - only_second])[None]
        inner = paired_difference(answers).span
        assert low <= inner[0] + 1e-9
        assert inner[1] <= high + 1e-9
        if together == 50:
            assert (low, high) == pytest.approx(inner)


def test_perfect_students_do_not_give_an_interval_without_width() -> None:
    low, high = widest_difference(1.0, 1.0, 50).span
    assert low < 0 < high
    assert high - low == pytest.approx(2 * 1.959964 * (1 / 52 / 52) ** 0.5, rel=1e-6)
    assert seed_difference([1.0] * 3, [1.0] * 3, 50).error == pytest.approx(1 / 52)


def test_two_seeds_borrow_from_other_pairs() -> None:
    """0.5 and 0.7 differ with a variance of 0.02; others' mean of 0.01 is less, and only adds degrees of freedom."""
    alone, helped = (seed_difference([0.9, 0.9], [0.4, 0.2], 10**6, others) for others in ((), (0.01, 0.0)))
    assert alone.error == helped.error == pytest.approx(0.1, rel=1e-3)
    assert (alone.freedom, helped.freedom) == (pytest.approx(1, rel=0.01), pytest.approx(3, rel=0.01))
    assert seed_difference([0.9, 0.9], [0.4, 0.2], 10**6, [0.1]).error == pytest.approx((0.06 / 2) ** 0.5, rel=1e-3)
    three = [seed_difference([0.9] * 3, [0.4, 0.2, 0.3], 10**6, others).error for others in ((), (0.5,))]
    assert three[0] == three[1]


def test_seeds_that_differ_widen_the_interval_with_answers() -> None:
    alike = np.tile(np.repeat([1.0, 0.0], [30, 70]), (3, 1))
    unlike = np.array([np.repeat([1.0, 0.0], [right, 100 - right]) for right in (10, 30, 50)])
    assert alike.mean() == unlike.mean()
    assert unlike.mean(axis=1).std() > 0
    assert paired_difference(unlike).error > 2 * paired_difference(alike).error


def test_the_tail_of_t_agrees_with_scipy() -> None:
    assert t_tail(2.5, 3.7) == pytest.approx(scipy.stats.t.sf(2.5, 3.7))
