from __future__ import annotations

import numpy as np
import pytest
import torch

from fedstill.core.errors import InputError
from fedstill.core.protocols import RoundContext
from fedstill.core.streams import Streams
from fedstill.participation.label_balanced import LabelBalanced, complementary, shares
from fedstill.participation.policies import Random

NAN = float("nan")


def context(round: int, clients: int) -> RoundContext:
    return RoundContext(round, 1000, clients, "select", Streams(0).at("round", round, "select"))


def test_by_hand() -> None:
    """Goal thirds. From (3, 0, 0): with (0, 3, 0) or (0, 0, 3) shares are (1/2, 1/2, 0), at distance 1/6.

    With (2, 2, 0) they are (5/7, 2/7, 0), further away. Of the two equals the earlier; then the other completes thirds.
    """
    rows = np.array([[3.0, 0, 0], [2, 2, 0], [0, 3, 0], [0, 0, 3]])
    third = np.full(3, 1 / 3)
    assert complementary(rows, third, 3) == [0, 2, 3]
    assert complementary(rows, third, 4) == [0, 2, 3, 1]
    assert complementary(rows[:0], third, 0) == []


def test_the_unknown_come_last_but_may_be_first() -> None:
    rows = np.array([[NAN, NAN], [NAN, NAN], [1.0, 0.0], [0.0, 1.0]])
    half = np.array([0.5, 0.5])
    assert complementary(rows, half, 4) == [0, 2, 3, 1]


def test_shares_of_nothing_are_nothing() -> None:
    assert shares(np.array([[0.0, 0.0], [1.0, 3.0]])).tolist() == [[0, 0], [0.25, 0.75]]


def distance(counts: np.ndarray, chosen: np.ndarray) -> float:
    return float(np.square(shares(counts[chosen].sum(axis=0)) - shares(counts.sum(axis=0))).sum())


def test_cohorts_are_nearer_to_the_fleets_mix_than_random_ones() -> None:
    """40 clients with one or two of ten classes each; over 50 rounds, ten times nearer on average is asked for."""
    generator = Streams(1).draw("mixes")
    counts = np.zeros((40, 10))
    for row in counts:
        row[generator.choice(10, 2)] += generator.integers(5, 50, 2)
    state = {"labels": torch.from_numpy(counts)}
    means = [
        np.mean([distance(counts, policy.choose(np.arange(40), state, 40, context(r, 40))) for r in range(50)])
        for policy in (LabelBalanced(number=10, candidates=40), Random(number=10))
    ]
    assert means[0] < means[1] / 10


def test_cohorts_differ_even_if_all_are_candidates() -> None:
    state = {"labels": torch.eye(6, dtype=torch.float64)}
    policy = LabelBalanced(number=2, candidates=6)
    rounds = [policy.choose(np.arange(6), state, 6, context(round, 6)).tolist() for round in range(60)]
    assert {client for chosen in rounds for client in chosen} == set(range(6))


def test_without_any_answer_the_draw_decides() -> None:
    for state in ({}, {"labels": torch.full((6, 3), NAN).double()}):
        assert len(LabelBalanced(number=2).choose(np.arange(6), state, 6, context(0, 6))) == 2


def test_those_never_heard_are_asked_and_nobody_twice() -> None:
    policy, now = LabelBalanced(number=2), context(0, 4)
    everyone = policy.survey({}, np.arange(4), {}, 3, now)
    assert everyone is not None
    assert everyone.clients == [0, 1, 2, 3]
    labels = torch.ones(4, 3, dtype=torch.float64)
    labels[2] = NAN
    missing = policy.survey({"labels": labels}, np.array([0, 2, 3]), {}, 3, now)
    assert missing is not None
    assert missing.clients == [2]
    assert policy.survey({"labels": labels}, np.array([0, 1]), {}, 3, now) is None
    assert [exchange.name for exchange in policy.exchanges(3, {})] == ["labels"]


def test_a_huge_cohort_is_refused() -> None:
    with pytest.raises(InputError, match=r"at most 10,000 clients a round, not 20,000"):
        LabelBalanced(number=20_000).check(100_000)
