from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from fedstill.core.errors import InputError
from fedstill.core.protocols import Profile, RoundContext
from fedstill.core.streams import Streams
from fedstill.core.task import Tensors
from fedstill.devices.clustered import Clustered
from fedstill.participation.label_balanced import LabelBalanced
from fedstill.participation.power_of_choice import PowerOfChoice
from fedstill.participation.weighted import BatteryAware, Weighted


def context(round: int, clients: int, seed: int = 0) -> RoundContext:
    return RoundContext(round, 1000, clients, "select", Streams(seed).at("round", round, "select"))


def devices(levels: list[float], capacity: float = 10.0) -> dict[str, torch.Tensor]:
    charge = torch.tensor(levels, dtype=torch.float64) * capacity
    return {"charge": charge, "capacity": torch.full_like(charge, capacity)}


def cohort(policy: Weighted, fleet: Tensors, clients: int, round: int = 0, seed: int = 0) -> list[int]:
    now = context(round, clients, seed)
    reached = policy.eligible(fleet, policy.available(clients, now))
    return policy.choose(reached, fleet, clients, now).tolist()


def test_weights_grow_with_the_level() -> None:
    """floor 0.2: an empty battery counts 0.2, a full one 1, a half one 0.6; squared, 0.2 + 0.8 / 4 = 0.4."""
    fleet, everyone = devices([0.0, 0.5, 1.0]), np.arange(3)
    assert BatteryAware(number=1, floor=0.2).weights(fleet, everyone) == pytest.approx([0.2, 0.6, 1.0])
    assert BatteryAware(number=1, floor=0.2, power=2).weights(fleet, everyone) == pytest.approx([0.2, 0.4, 1.0])


def test_history_and_link_are_factors() -> None:
    """Finished 1 of 3 with one credited round: 2/4; 3 of 3: 1; never asked: 1; Wi-Fi three times likelier."""
    fleet = {
        "asked": torch.tensor([3, 3, 0]),
        "finished": torch.tensor([1, 3, 0]),
        "wifi": torch.tensor([True, False, True]),
    }
    policy = Clustered(number=2, history=True, link=3)
    assert policy.weights(fleet, np.arange(3)) == pytest.approx([1.5, 1.0, 3.0])
    assert policy.weights(fleet, np.array([2, 0])) == pytest.approx([3.0, 1.5])
    assert Clustered(number=2, history=True, prior=3).weights(fleet, np.arange(3)) == pytest.approx([4 / 6, 1, 1])


def test_nobody_below_the_threshold_is_eligible_and_the_threshold_itself_is() -> None:
    fleet = devices([0.1, 0.2999, 0.3, 0.9])
    assert BatteryAware(number=2, threshold=0.3).eligible(fleet, np.arange(4)).tolist() == [2, 3]
    assert BatteryAware(number=2, threshold=0.3).eligible(fleet, np.array([0, 3])).tolist() == [3]
    assert Clustered(number=2).eligible(fleet, np.arange(4)).tolist() == [0, 1, 2, 3]


def test_all_devices_flat_means_an_empty_cohort() -> None:
    fleet = {**devices([0.0] * 5), "cluster": torch.zeros(5, dtype=torch.int64)}
    fleet |= {"labels": torch.ones(5, 2).double(), "loss": torch.ones(5).double(), "samples": torch.ones(5).long()}
    for policy in everywhere():
        assert cohort(policy, fleet, 5) == []


def everywhere(threshold: float = 0.2, number: int = 3) -> list[Weighted]:
    """Every policy that can look at batteries."""
    aware = {"number": number, "threshold": threshold, "battery_aware": True}
    return [BatteryAware(**aware), Clustered(**aware), PowerOfChoice(**aware), LabelBalanced(**aware)]


@given(
    levels=st.lists(st.floats(0, 1), min_size=3, max_size=40),
    threshold=st.floats(0, 1),
    availability=st.floats(0, 1),
    round=st.integers(0, 100),
    data=st.data(),
)
@settings(deadline=None, max_examples=60)
def test_no_battery_aware_policy_selects_below_the_threshold_and_all_others_have_a_chance(
    levels: list[float], threshold: float, availability: float, round: int, data: st.DataObject
) -> None:
    clients = len(levels)
    numbers = st.lists(st.integers(-1, 3), min_size=clients, max_size=clients)
    fleet = {
        **devices(levels),
        "cluster": torch.tensor(data.draw(numbers)),
        "samples": torch.arange(clients),
        "loss": torch.tensor(levels).double(),
        "labels": torch.rand(clients, 3, generator=torch.Generator().manual_seed(round)).double(),
    }
    able = {client for client, level in enumerate(devices(levels)["charge"] / 10) if level >= threshold}
    for policy in everywhere(threshold):
        policy = policy.model_copy(update={"availability": availability})
        eligible = policy.eligible(fleet, np.arange(clients))
        assert set(eligible.tolist()) == able
        assert (policy.weights(fleet, eligible) > 0).all()
        chosen = cohort(policy, fleet, clients, round)
        assert chosen == sorted(set(chosen))
        assert set(chosen) <= able
        reached = set(policy.available(clients, context(round, clients)).tolist())
        assert len(chosen) == min(3, len(able & reached))


@pytest.mark.parametrize("policy", [BatteryAware, Clustered, LabelBalanced], ids=lambda kind: kind.__name__)
def test_the_weak_are_asked_too(policy: type[Weighted]) -> None:
    """Nine full batteries and one at the threshold, which is asked less often than any other but is asked."""
    fleet = {
        **devices([1.0] * 9 + [0.2]),
        "cluster": torch.tensor([0, 1, -1, 0, 1, -1, 0, 1, -1, 0]),
        "labels": torch.ones(10, 2).double(),
    }
    settings = {"number": 3, "battery_aware": True}
    counts = Counter(client for round in range(600) for client in cohort(policy(**settings), fleet, 10, round))
    assert set(counts) == set(range(10))
    assert counts[9] == min(counts.values())
    assert 10 < counts[9] < 120


def test_full_batteries_are_drawn_in_proportion() -> None:
    """One of two: 0.05 + 0.95 / 2 = 0.525 against 1, so 525 / 1525 of 2,000 rounds: 689, give or take 4 * 21."""
    fleet = devices([0.5, 1.0])
    counts = Counter(cohort(BatteryAware(number=1), fleet, 2, round)[0] for round in range(2000))
    assert abs(counts[0] - 689) < 85


def test_what_the_fleet_must_keep() -> None:
    profiles = [Profile(client, 10 + client, "mlp") for client in range(3)]
    assert BatteryAware(number=1).start(profiles, Streams(0)) == {}
    kept = BatteryAware(number=1, history=True).start(profiles, Streams(0))
    assert {name: column.tolist() for name, column in kept.items()} == {"asked": [0, 0, 0], "finished": [0, 0, 0]}
    kept = PowerOfChoice(number=1).start(profiles, Streams(0))
    assert sorted(kept) == ["loss", "samples"]
    assert kept["samples"].tolist() == [10, 11, 12]
    assert kept["loss"].dtype == torch.float64
    assert kept["loss"].isnan().all()


def test_what_the_experiment_must_have() -> None:
    assert BatteryAware(number=1).needs == {"fleet"}
    assert Clustered(number=1).needs == {"clusters"}
    assert Clustered(number=1, battery_aware=True).needs == {"clusters", "fleet"}
    assert Clustered(number=1, link=2).needs == {"clusters", "fleet"}
    assert PowerOfChoice(number=1).needs == frozenset()
    assert PowerOfChoice(number=1, losses="poll").needs == {"shared-model"}
    assert LabelBalanced(number=1).needs == {"labels"}
    assert not any(policy.even for policy in everywhere())


@pytest.mark.parametrize(
    "given",
    [
        {"threshold": 0.3},
        {"floor": 0.3},
        {"power": 2},
        {"prior": 3},
        {"battery_aware": True, "floor": 0},
        {"battery_aware": True, "threshold": 1.1},
        {"history": True, "prior": 0},
        {"link": 0.5},
        {"fraction": 0.5},
    ],
    ids=lambda given: ",".join(given),
)
def test_settings_that_make_no_sense_are_refused(given: dict) -> None:
    with pytest.raises(ValidationError):
        Clustered(number=3, **given)


def test_battery_aware_cannot_be_switched_off() -> None:
    with pytest.raises(ValidationError):
        BatteryAware(number=3, battery_aware=False)


@pytest.mark.parametrize("policy", everywhere(), ids=lambda policy: type(policy).__name__)
def test_settings_survive_being_written_out(policy: Weighted) -> None:
    assert type(policy).model_validate(policy.model_dump(mode="json")) == policy


def test_a_cohort_larger_than_the_fleet_is_refused() -> None:
    with pytest.raises(InputError, match=r"participation\.number is 6, but there are only 5 clients"):
        BatteryAware(number=6).check(5)


@pytest.mark.parametrize("kind", [PowerOfChoice, LabelBalanced], ids=lambda kind: kind.__name__)
def test_candidates_must_suffice_and_be_there(kind: type[PowerOfChoice]) -> None:
    kind(number=3, candidates=3).check(5)
    kind(number=3).check(5)
    for candidates in (2, 6):
        with pytest.raises(InputError, match=rf"candidates is {candidates}: give at least the 3 .* all 5 clients"):
            kind(number=3, candidates=candidates).check(5)
