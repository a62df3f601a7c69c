from __future__ import annotations

from math import sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from fedstill.core.errors import InputError
from fedstill.core.protocols import Profile, RoundContext
from fedstill.core.streams import Streams
from fedstill.participation import policies
from fedstill.participation.policies import Everyone, Policy, Random


def fleet(clients: int) -> list[Profile]:
    return [Profile(client, 10, "mlp") for client in range(clients)]


def context(round: int, seed: int = 0) -> RoundContext:
    return RoundContext(round, 1000, 10, "select", Streams(seed).at("round", round, "select"))


def cohort(policy: Policy, clients: int, round: int = 0, seed: int = 0) -> list[int]:
    now = context(round, seed)
    reached = policy.eligible({}, policy.available(clients, now))
    return policy.choose(reached, {}, clients, now).tolist()


def close(count: int, trials: int, chance: float) -> bool:
    """Within four standard errors of a binomial count."""
    return abs(count - trials * chance) <= 4 * sqrt(trials * chance * (1 - chance))


def test_everyone_is_everyone() -> None:
    assert cohort(Everyone(), 7) == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("fraction", "clients", "expected"),
    [(0.1, 10, 1), (0.1, 100, 10), (0.25, 20, 5), (1.0, 7, 7), (0.001, 10, 1), (0.4, 20, 8), (0.01, 1000, 10)],
)
def test_a_fraction_of_all_clients_and_at_least_one(fraction: float, clients: int, expected: int) -> None:
    assert len(cohort(Random(fraction=fraction), clients)) == expected


@pytest.mark.parametrize("number", [1, 3, 10])
def test_a_number_of_clients(number: int) -> None:
    assert len(cohort(Random(number=number), 10)) == number


@given(
    clients=st.integers(1, 60),
    fraction=st.floats(0.01, 1),
    availability=st.floats(0, 1),
    round=st.integers(0, 500),
    seed=st.integers(0, 2**63 - 1),
)
@settings(deadline=None)
def test_a_cohort_is_sorted_without_repeats_and_within_the_fleet(
    clients: int, fraction: float, availability: float, round: int, seed: int
) -> None:
    policy = Random(fraction=fraction, availability=availability)
    chosen = cohort(policy, clients, round, seed)
    assert chosen == sorted(set(chosen))
    assert set(chosen) <= set(range(clients))
    assert len(chosen) <= max(1, fraction * clients + 0.5)
    assert all(type(client) is int for client in chosen)
    assert set(chosen) <= set(cohort(Everyone(availability=availability), clients, round, seed))


def test_rounds_and_seeds_choose_differently() -> None:
    policy = Random(number=5)
    rounds = {tuple(cohort(policy, 50, round)) for round in range(20)}
    seeds = {tuple(cohort(policy, 50, 0, seed)) for seed in range(20)}
    assert len(rounds) == len(seeds) == 20


def test_a_cohort_does_not_depend_on_what_was_asked_before() -> None:
    policy = Random(fraction=0.3, availability=0.7)
    straight = {round: cohort(policy, 40, round) for round in range(10)}
    for round in (9, 3, 3, 0, 7):
        assert cohort(Random(fraction=0.3, availability=0.7), 40, round) == straight[round]


def test_old_runs_keep_their_cohorts() -> None:
    """Written out: a uniform number per client against its availability, then numpy's draw without putting back."""
    for round in range(20):
        streams = Streams(5).at("round", round, "select")
        reached = [client for client, luck in enumerate(streams.draw("availability").random(30)) if luck < 0.6]
        assert cohort(Everyone(availability=0.6), 30, round, 5) == reached
        drawn = streams.draw("select").choice(reached, min(9, len(reached)), replace=False)
        assert cohort(Random(fraction=0.3, availability=0.6), 30, round, 5) == sorted(drawn.tolist())


def test_every_client_is_chosen_equally_often() -> None:
    """2,000 rounds of 3 in 12: each client 500 times, give or take 4 sqrt(2000 * 1/4 * 3/4) = 77."""
    counts = [0] * 12
    for round in range(2000):
        for client in cohort(Random(number=3), 12, round):
            counts[client] += 1
    assert sum(counts) == 6000
    assert all(close(count, 2000, 0.25) for count in counts)


def test_one_availability_for_all() -> None:
    counts = [0] * 5
    for round in range(1500):
        for client in cohort(Everyone(availability=0.3), 5, round):
            counts[client] += 1
    assert all(close(count, 1500, 0.3) for count in counts)


def test_an_availability_per_client() -> None:
    chances = (0.0, 0.2, 0.5, 0.9, 1.0)
    counts = [0] * 5
    for round in range(1500):
        for client in cohort(Everyone(availability=chances), 5, round):
            counts[client] += 1
    assert counts[0] == 0
    assert counts[4] == 1500
    assert all(close(count, 1500, chance) for count, chance in zip(counts, chances, strict=True))


def test_clients_are_available_independently() -> None:
    """Both of two clients at 1/2: a quarter of 2,000 rounds."""
    both = sum(len(cohort(Everyone(availability=0.5), 2, round)) == 2 for round in range(2000))
    assert close(both, 2000, 0.25)


def test_availability_of_one_client_does_not_depend_on_the_others_chances() -> None:
    for round in range(50):
        alike = 3 in cohort(Everyone(availability=0.5), 6, round)
        others = 3 in cohort(Everyone(availability=(0, 0, 1, 0.5, 1, 0)), 6, round)
        assert alike == others


def test_a_number_is_cut_down_to_those_who_can_be_reached() -> None:
    assert cohort(Random(number=3, availability=(1, 0, 0, 1, 0)), 5) == [0, 3]


def test_a_fraction_is_of_all_clients_not_of_those_who_can_be_reached() -> None:
    """Half of ten is five, and five can be reached: all of them, not half of them."""
    chances = (1.0, 0.0) * 5
    assert cohort(Random(fraction=0.5, availability=chances), 10) == [0, 2, 4, 6, 8]


@pytest.mark.parametrize("policy", [Everyone(availability=0.0), Random(fraction=0.5, availability=0.0)])
def test_nobody_may_be_there(policy: Policy) -> None:
    assert cohort(policy, 10) == []


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"fraction": 0.5, "number": 2},
        {"fraction": 0},
        {"fraction": 1.01},
        {"fraction": -0.1},
        {"number": 0},
        {"number": 1.5},
        {"fraction": 0.5, "dropout": 0.1},
        {"fraction": 0.5, "availability": -0.1},
        {"fraction": 0.5, "availability": [0.5, 1.5]},
        {"fraction": float("nan")},
        {"share": 0.5},
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict) -> None:
    with pytest.raises(ValidationError):
        Random(**settings)


def test_what_does_not_fit_the_number_of_clients_is_refused() -> None:
    Random(number=5).check(5)
    Everyone(availability=(0.5, 0.5)).check(2)
    with pytest.raises(InputError, match=r"participation\.number is 6, but there are only 5 clients"):
        Random(number=6).check(5)
    with pytest.raises(InputError, match="lists 2 probabilities for 5 clients"):
        Everyone(availability=(0.5, 0.5)).check(5)
    with pytest.raises(InputError, match="lists 2 probabilities for 5 clients"):
        Random(number=3, availability=(0.5, 0.5)).check(5)


def test_policies_by_name() -> None:
    known = {"everyone", "random", "battery-aware", "clustered", "power-of-choice", "label-balanced"}
    assert known <= set(policies.names())
    assert policies["random"] is Random
    assert all(policies.summary(name) for name in known)


@pytest.mark.parametrize("policy", [Everyone(), Random(number=2)])
def test_plain_policies_want_nothing(policy: Policy) -> None:
    everyone = np.arange(3)
    assert policy.start(fleet(3), Streams(0)) == {}
    assert policy.needs == frozenset()
    assert policy.exchanges(10, {}) == ()
    assert policy.survey({}, everyone, {}, 10, context(0)) is None
    assert policy.weights({}, everyone).tolist() == [1, 1, 1]
    assert policy.even
