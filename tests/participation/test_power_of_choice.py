from __future__ import annotations

import numpy as np
import torch

from fedstill.core.protocols import Profile, RoundContext
from fedstill.core.streams import Streams
from fedstill.participation.power_of_choice import PowerOfChoice
from fedstill.participation.surveys import SharedLoss

NAN = float("nan")


def context(round: int, clients: int) -> RoundContext:
    return RoundContext(round, 1000, clients, "select", Streams(0).at("round", round, "select"))


def fleet(losses: list[float], samples: list[int] | None = None) -> dict[str, torch.Tensor]:
    counts = torch.tensor(samples or [10] * len(losses))
    return {"loss": torch.tensor(losses, dtype=torch.float64), "samples": counts}


def test_of_all_candidates_those_with_the_highest_loss() -> None:
    state = fleet([0.5, 2.0, 0.1, 1.5, 0.9])
    policy = PowerOfChoice(number=2, candidates=5)
    assert policy.choose(np.arange(5), state, 5, context(0, 5)).tolist() == [1, 3]
    assert policy.choose(np.array([0, 2, 4]), state, 5, context(0, 5)).tolist() == [0, 4]


def test_those_never_heard_come_first() -> None:
    state = fleet([0.5, NAN, 0.1, 9.0, NAN])
    assert PowerOfChoice(number=2, candidates=5).choose(np.arange(5), state, 5, context(0, 5)).tolist() == [1, 4]
    assert PowerOfChoice(number=3, candidates=5).choose(np.arange(5), state, 5, context(0, 5)).tolist() == [1, 3, 4]


def test_candidates_are_as_many_as_asked_for_and_twice_the_cohort_by_default() -> None:
    """Losses rise with the id: the cohort is the top of the shortlist."""
    state = fleet([float(client) for client in range(30)])
    for policy, size in ((PowerOfChoice(number=3), 6), (PowerOfChoice(number=3, candidates=11), 11)):
        for round in range(20):
            short = policy.shortlist(np.arange(30), state, 30, context(round, 30))
            assert len(set(short.tolist())) == size
            assert policy.choose(np.arange(30), state, 30, context(round, 30)).tolist() == sorted(short.tolist())[-3:]


def test_candidates_are_drawn_by_samples_or_evenly() -> None:
    """One candidate of two with 10 and 30 samples: the first in a quarter of 2,000 rounds, or in half of them."""
    state = fleet([1.0, 1.0], [10, 30])
    for draw, expected in (("samples", 500), ("evenly", 1000)):
        policy = PowerOfChoice(number=1, candidates=1, draw=draw)
        first = sum(policy.choose(np.arange(2), state, 2, context(round, 2)).tolist() == [0] for round in range(2000))
        assert abs(first - expected) < 90


def test_a_client_without_samples_does_not_break_the_draw() -> None:
    state = fleet([NAN] * 3, [0, 5, 5])
    assert PowerOfChoice(number=3).choose(np.arange(3), state, 3, context(0, 3)).tolist() == [0, 1, 2]


def test_only_candidates_are_asked_for_their_loss() -> None:
    state = fleet([NAN] * 20)
    model = {"parameters/w": torch.ones(2)}
    policy, now = PowerOfChoice(number=2, candidates=6, losses="poll"), context(4, 20)
    survey = policy.survey(state, np.arange(5, 20), {"mlp": model}, 10, now)
    assert survey is not None
    assert isinstance(survey.exchange, SharedLoss)
    assert survey.clients == sorted(policy.shortlist(np.arange(5, 20), state, 20, now).tolist())
    assert len(survey.clients) == 6
    request = survey.exchange.request(state, Profile(7, 10, "mlp"), now)
    assert request is not None
    assert list(request) == ["model/parameters/w"]
    assert PowerOfChoice(number=2).survey(state, np.arange(20), {"mlp": model}, 10, now) is None
    assert [exchange.name for exchange in policy.exchanges(10, {})] == ["losses"]


def test_of_those_asked_only_answers_count_and_the_silent_come_last() -> None:
    """After the survey only those who answered have a loss; with two answers and three places, luck fills the third."""
    policy = PowerOfChoice(number=3, candidates=4, losses="poll")
    state = fleet([NAN, 0.3, NAN, NAN, 0.7, NAN])
    for round in range(10):
        chosen = policy.choose(np.arange(6), state, 6, context(round, 6)).tolist()
        assert {1, 4} <= set(chosen)
        assert len(chosen) == 3
    assert PowerOfChoice(number=1, losses="poll").choose(np.arange(6), state, 6, context(0, 6)).tolist() == [4]
