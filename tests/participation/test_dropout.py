from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from fedstill.core.errors import InputError
from fedstill.core.participation_protocols import DropoutEvent
from fedstill.core.protocols import RoundContext
from fedstill.core.streams import Streams
from fedstill.participation import dropouts
from fedstill.participation.dropout import Bursty, Chance, Dropout, Independent, NoDropout
from fedstill.participation.policies import Everyone


def context(round: int, clients: int = 20, seed: int = 0) -> RoundContext:
    return RoundContext(round, 1000, clients, "select", Streams(seed).at("round", round, "select"))


def close(count: int, trials: int, chance: float) -> bool:
    """Within four standard errors of a binomial count."""
    return abs(count - trials * chance) <= 4 * sqrt(trials * chance * (1 - chance))


def test_kinds_by_name() -> None:
    assert set(dropouts.names()) == {"none", "independent", "bursty", "trace"}
    assert dropouts["independent"] is Independent


def test_nobody_is_lost_by_default() -> None:
    none = NoDropout(replace=True)
    everyone = np.arange(20)
    assert none.start(20, Streams(0)) == {}
    assert none.dropout_events({}, range(20), context(0)) == {}
    assert none.next({}, context(0)) == {}
    assert none.can_replace({}, everyone, context(0)) is everyone
    assert (none.replace, none.replacements_can_drop, none.digest) == (True, False, "")


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.4, 0.8, 1.0])
def test_each_with_that_chance(rate: float) -> None:
    lost = sum(len(Independent(rate=rate).dropout_events({}, range(20), context(round))) for round in range(100))
    assert close(lost, 2000, rate)


@pytest.mark.parametrize(("rate", "expected"), [(0.4, 8), (0.6, 12), (0.8, 16), (0.0, 0), (1.0, 20), (0.02, 0)])
def test_exactly_a_share_of_the_cohort(rate: float, expected: int) -> None:
    cohorts = [
        Independent(rate=rate, of_cohort=True).dropout_events({}, range(20), context(round)) for round in range(20)
    ]
    assert {len(lost) for lost in cohorts} == {expected}
    if 0 < expected < 20:
        assert len({tuple(lost) for lost in cohorts}) > 10


@given(st.floats(0, 1), st.sets(st.integers(0, 19)), st.integers(0, 100))
def test_the_share_is_rounded_and_of_those_asked(rate: float, cohort: set[int], round: int) -> None:
    lost = Independent(rate=rate, of_cohort=True).dropout_events({}, sorted(cohort), context(round))
    assert set(lost) <= cohort
    assert abs(len(lost) - rate * len(cohort)) <= 0.5


def test_the_unluckiest_are_lost_either_way() -> None:
    """Both ways read the same luck, so the share of the cohort are those whom the chance would take first."""
    for round in range(10):
        luck = {client: context(round).streams.draw("dropout", client).random() for client in range(20)}
        eight = sorted(luck, key=luck.__getitem__)[:8]
        assert list(Independent(rate=0.4, of_cohort=True).dropout_events({}, range(20), context(round))) == sorted(
            eight
        )
        rate = luck[eight[-1]] + 1e-9
        assert list(Independent(rate=rate).dropout_events({}, range(20), context(round))) == sorted(eight)


def test_a_clients_fate_is_its_own() -> None:
    """Asked in any order and among any others: the same fate, and not that of another round."""
    dropout = Independent(rate=0.5, when="during")
    everyone = dropout.dropout_events({}, range(20), context(3))
    assert dropout.dropout_events({}, range(19, -1, -1), context(3)) == everyone
    alone = {client: dropout.dropout_events({}, [client], context(3)).get(client) for client in range(20)}
    assert {client: fate for client, fate in alone.items() if fate} == everyone
    assert dropout.dropout_events({}, range(20), context(4)) != everyone


def test_dropout_is_independent_of_availability() -> None:
    """Reached (1/2) and lost (1/2): a quarter of all; the same draw for both would give one half or none."""
    both = 0
    for round in range(100):
        reached = Everyone(availability=0.5).available(20, context(round)).tolist()
        both += len(Independent(rate=0.5).dropout_events({}, reached, context(round)))
    assert close(both, 2000, 0.25)


@pytest.mark.parametrize("when", ["before", "after"])
def test_when(when: str) -> None:
    fates = Independent(rate=1, when=when).dropout_events({}, range(20), context(0))
    assert set(fates.values()) == {DropoutEvent(when, 1.0)}


def test_the_share_of_the_work_done_is_drawn_evenly() -> None:
    """Mean 1/2 and deviation 1/sqrt(12) over 2,000 losses: within four standard errors of both."""
    fates = [
        fate
        for round in range(100)
        for fate in Independent(rate=1, when="during").dropout_events({}, range(20), context(round)).values()
    ]
    assert {fate.when for fate in fates} == {"during"}
    fractions = np.array([fate.fraction for fate in fates])
    assert ((fractions >= 0) & (fractions < 1)).all()
    assert abs(fractions.mean() - 0.5) < 4 / sqrt(12 * 2000)
    assert abs(fractions.std() - 1 / sqrt(12)) < 0.02
    assert len(set(fractions.tolist())) == 2000


def history(dropout: Bursty, clients: int, rounds: int) -> np.ndarray:
    """Who was away, rounds by clients."""
    fleet = dropout.start(clients, Streams(1).at("fleet"))
    seen = []
    for round in range(rounds):
        seen.append(fleet["away"].numpy())
        fleet = dropout.next(fleet, context(round, clients))
    return np.stack(seen)


@pytest.mark.parametrize(("rate", "length"), [(0.2, 5.0), (0.5, 2.0), (0.4, 1.0), (0.8, 4.0)])
def test_the_share_away_and_the_length_of_bursts(rate: float, length: float) -> None:
    """500 clients over 400 rounds. The share's deviation: p(1-p)/N, times (1+r)/(1-r) for a chain with memory r."""
    dropout = Bursty(rate=rate, length=length)
    away = history(dropout, 500, 400)
    memory = 1 - 1 / length - dropout.leaves
    error = sqrt(rate * (1 - rate) / away.size * (1 + abs(memory)) / (1 - abs(memory)))
    assert abs(away.mean() - rate) < 4 * error
    assert close(int(away[0].sum()), 500, rate)  # from the first round on
    assert close(int(away[-1].sum()), 500, rate)
    began = away[1:] & ~away[:-1]
    ended = ~away[1:] & away[:-1]
    bursts = int(began.sum() + ended.sum()) / 2
    assert away.sum() / bursts == pytest.approx(length, rel=0.05)


def test_without_memory_bursts_are_independent_losses() -> None:
    """rate 0.5, length 2: away with chance 1/2 in each round, whatever was before."""
    dropout = Bursty(rate=0.5, length=2)
    assert dropout.leaves == 0.5
    away = history(dropout, 200, 100)
    assert close(int((away[1:] & away[:-1]).sum()), 200 * 99, 0.25)


def test_rate_zero_is_nobody() -> None:
    assert not history(Bursty(rate=0, length=3), 50, 20).any()


def test_those_away_are_lost_and_cannot_stand_in() -> None:
    dropout = Bursty(rate=0.5, length=3, when="before")
    fleet = dropout.start(20, Streams(0))
    away = {client for client in range(20) if fleet["away"][client]}
    assert 2 < len(away) < 18
    assert dropout.dropout_events(fleet, range(5, 20), context(0)) == {
        c: DropoutEvent("before") for c in sorted(away) if c >= 5
    }
    assert set(dropout.can_replace(fleet, np.arange(20), context(0)).tolist()) == set(range(20)) - away
    careless = Bursty(rate=0.5, length=3, replacements_can_drop=True)
    assert careless.can_replace(fleet, np.arange(20), context(0)).tolist() == list(range(20))


def test_state_is_replaced_not_changed() -> None:
    dropout = Bursty(rate=0.5, length=3)
    fleet = {**dropout.start(20, Streams(0)), "other": dropout.start(20, Streams(1))["away"]}
    before = fleet["away"].clone()
    after = dropout.next(fleet, context(0))
    assert after["away"].dtype == before.dtype
    assert fleet["away"].equal(before)
    assert after["other"] is fleet["other"]
    assert not after["away"].equal(before)


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (Independent, {}),
        (Independent, {"rate": 1.1}),
        (Independent, {"rate": 0.5, "when": "later"}),
        (Bursty, {"rate": 0.5}),
        (Bursty, {"rate": 1, "length": 3}),
        (Bursty, {"rate": 0.5, "length": 0.5}),
        (NoDropout, {"when": "after"}),
    ],
    ids=str,
)
def test_settings_that_make_no_sense_are_refused(kind: type[Chance], given: dict) -> None:
    with pytest.raises(ValidationError):
        kind(**given)


def test_a_chain_that_cannot_be_is_refused_with_what_would_do() -> None:
    """80 % of the time away means four rounds away for one there, which lasts a round at least."""
    Bursty(rate=0.8, length=4)
    with pytest.raises(ValidationError, match="length must be at least 4"):
        Bursty(rate=0.8, length=3.9)


def test_a_plugin_with_an_earlier_name_is_told_the_new_one() -> None:
    with pytest.raises(InputError, match=r"Weekends\.fates has another name now: rename it to dropout_events"):

        class Weekends(Dropout):
            def fates(self, fleet: Any, cohort: Any, context: Any) -> Any:
                return {}
