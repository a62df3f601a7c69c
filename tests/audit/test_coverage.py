"""The audit's 95 % intervals hold the truth about so often, on 40 to 120 test samples with one to five seeds."""

from __future__ import annotations

from statistics import fmean

import pytest
from benchmarks.coverage import Coverage, table


def check(found: list[Coverage], least: float, lowest: float) -> None:
    """Every interval but that over seeds alone, which is given where nothing is known of the test set."""
    for one in found:
        if "alone" not in one.what:
            assert fmean(one.shares) >= least, one
            assert min(one.shares) >= lowest, one


def test_coverage_is_near_nominal() -> None:
    found = table(draws=30, seed=1, sizes=(40, 120), seeds=(2, 3))
    check(found, least=0.93, lowest=0.75)
    # Too wide would be wrong too: with answers known there is nothing to allow for.
    known = [one for one in found if "answers known" in one.what]
    assert all(fmean(one.shares) <= 0.995 for one in known)


def test_seeds_alone_say_too_much() -> None:
    """Why the test set is included: three equal seeds on one test set give an interval that misses the truth."""
    alone = next(one for one in table(draws=30, seed=1, sizes=(40,), seeds=(3,)) if "alone" in one.what)
    assert min(alone.shares) < 0.75


@pytest.mark.slow
def test_coverage_in_many_draws() -> None:
    check(table(draws=400, seed=2), least=0.945, lowest=0.88)
