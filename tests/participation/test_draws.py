from __future__ import annotations

from math import sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstill.core.protocols import RoundContext
from fedstill.core.streams import Streams
from fedstill.participation.draws import drawn, luck, places


def context(round: int) -> RoundContext:
    return RoundContext(round, 1000, 10, "select", Streams(0).at("round", round, "select"))


def close(count: int, trials: int, chance: float) -> bool:
    """Within four standard errors of a binomial count."""
    return abs(count - trials * chance) <= 4 * sqrt(trials * chance * (1 - chance))


def test_two_of_three_come_up_as_if_drawn_one_after_the_other() -> None:
    """Weights 1, 2, 3: client 0 is first with 1/6, or second after 1 (2/6 * 1/4) or after 2 (3/6 * 1/3): 5/12.

    Client 1: 2/6 + 1/6 * 2/5 + 3/6 * 2/3 = 11/15; client 2: 2 - 5/12 - 11/15 = 17/20.
    """
    weights, trials = np.array([1.0, 2.0, 3.0]), 3000
    counts = np.zeros(3, dtype=int)
    first = np.zeros(3, dtype=int)
    for round in range(trials):
        chosen = drawn(np.arange(3), weights, 2, luck(context(round), "select", 3))
        counts[chosen] += 1
        first[chosen[0]] += 1
    assert all(close(*case) for case in zip(counts, [trials] * 3, (5 / 12, 11 / 15, 17 / 20), strict=True))
    assert all(close(*case) for case in zip(first, [trials] * 3, (1 / 6, 2 / 6, 3 / 6), strict=True))


def test_luck_is_everyones_own() -> None:
    """Who else is in the draw changes nobody's key: of those that stay, the order stays."""
    lots = luck(context(0), "select", 30)
    weights = np.linspace(0.1, 1, 30)
    everyone = drawn(np.arange(30), weights, 30, lots).tolist()
    some = np.arange(0, 30, 3)
    assert drawn(some, weights[some], 30, lots).tolist() == [client for client in everyone if client % 3 == 0]


@pytest.mark.parametrize(
    ("sizes", "number", "expected"),
    [
        ([10, 10, 10, 10], 20, [5, 5, 5, 5]),
        ([5, 3, 2], 5, [2, 2, 1]),  # 2.5, 1.5, 1: one place is left, and equal remainders go to the luckier
        ([97, 1, 1, 1], 20, [17, 1, 1, 1]),  # 19.4 and three times 0.2
        ([4, 1], 5, [4, 1]),
        ([3, 2], 100, [3, 2]),  # no more places than members
        ([7], 3, [3]),
        ([50, 40, 10], 3, [1, 1, 1]),
        ([60, 30, 10], 9, [5, 3, 1]),  # 5.4, 2.7, 0.9 -> 1 for the last; 8 for 60 and 30: 5.33, 2.67
    ],
)
def test_places_by_hand(sizes: list[int], number: int, expected: list[int]) -> None:
    lots = np.linspace(2, 1, len(sizes))  # the later the luckier
    assert places(np.array(sizes), number, lots).tolist() == expected


def test_equal_remainders_are_settled_by_luck() -> None:
    """Two clusters of ten for three places: 1.5 each."""
    assert places(np.array([10, 10]), 3, np.array([0.2, 0.1])).tolist() == [1, 2]
    assert places(np.array([10, 10]), 3, np.array([0.1, 0.2])).tolist() == [2, 1]


def test_with_few_places_groups_are_drawn_by_size() -> None:
    """One place for groups of 1 and 4: the small one has it in a fifth of the rounds, not never."""
    won = sum(int(places(np.array([1, 4]), 1, luck(context(round), "places", 2))[0]) for round in range(2000))
    assert close(won, 2000, 0.2)


@given(st.lists(st.integers(1, 50), max_size=12), st.integers(0, 300), st.integers(0, 1000))
def test_places_add_up_and_nobody_has_too_many(sizes: list[int], number: int, round: int) -> None:
    given = places(np.array(sizes, dtype=np.int64), number, luck(context(round), "places", len(sizes)))
    assert given.sum() == min(number, sum(sizes))
    assert (given >= 0).all()
    assert (given <= np.array(sizes)).all()
    if number >= len(sizes):
        assert (given >= 1).all()
