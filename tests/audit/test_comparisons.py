"""Comparisons of several results: by hand, against scipy.stats, and what they cannot find."""

from __future__ import annotations

import pytest
import scipy.stats

from fedstill.audit.comparisons import compared, detectable, holm

FIRST = [0.80, 0.84, 0.79, 0.83]
SECOND = [0.78, 0.80, 0.78, 0.80]


def by_seed(values: list[float]) -> dict[str, float]:
    return {str(seed): value for seed, value in enumerate(values)}


def test_two_results_are_compared_by_the_paired_t_test() -> None:
    """Without a known test set nothing else is added; two results have one comparison."""
    (one,) = compared({"b": by_seed(SECOND), "a": by_seed(FIRST)}, samples=0)
    assert (one.first, one.second) == ("a", "b")
    assert one.p == pytest.approx(scipy.stats.ttest_rel(FIRST, SECOND).pvalue)
    assert one.gap.middle == pytest.approx(0.025)


def test_the_test_set_makes_a_difference_less_certain() -> None:
    results = {"a": by_seed(FIRST), "b": by_seed(SECOND)}
    errors = [compared(results, samples)[0].gap.error for samples in (40, 400, 10**9, 0)]
    assert errors[0] > errors[1] > errors[2] == pytest.approx(errors[3], rel=1e-3)
    assert compared(results, 0)[0].told_apart
    assert not compared(results, 40)[0].told_apart


def test_seeds_common_to_all_are_compared() -> None:
    """An effect of the seed that all share cancels; a seed that one lacks is left out."""
    shifts = [0.0, 0.1, -0.1]
    rows = {name: by_seed([base + shift for shift in shifts]) for name, base in (("a", 0.7), ("b", 0.6), ("c", 0.5))}
    rows["a"]["0"] += 0.001
    found = compared(rows, samples=0)
    assert [(one.first, one.second) for one in found] == [("a", "b"), ("a", "c"), ("b", "c")]
    assert all(one.told_apart for one in found)
    del rows["c"]["1"], rows["c"]["2"]
    assert compared(rows, samples=0) == []


def test_two_results_that_vary_more_than_others_are_held_against_their_own_spread() -> None:
    """Eight quiet results make the pooled variance small; a lead that one seed carries is still no lead."""
    quiet = {
        f"m{number}": by_seed([0.60 + number / 100, 0.601 + number / 100, 0.6 + number / 100]) for number in range(8)
    }
    found = compared({**quiet, "wild": by_seed([0.70, 0.71, 0.95])}, samples=0)
    lead = next(one for one in found if {one.first, one.second} == {"wild", "m7"})
    assert lead.first == "wild"
    assert not lead.told_apart


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.02, 0.03, 0.5]) == pytest.approx([0.04, 0.06, 0.06, 0.5])
    assert holm([]) == []


def test_a_detectable_difference_is_found_in_four_of_five() -> None:
    """Normal differences of that size, tested at 5 %: scipy's noncentral t gives the power."""
    (one,) = compared({"a": by_seed(FIRST * 5), "b": by_seed(SECOND * 5)}, samples=0)
    size = detectable(one, 1)
    power = scipy.stats.nct.sf(scipy.stats.t.ppf(0.975, 19), 19, size / one.gap.error)
    assert power == pytest.approx(0.8, abs=0.02)
    assert detectable(one, 10) > size
