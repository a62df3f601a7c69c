from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from fedstill.core.protocols import RoundContext
from fedstill.core.streams import Streams
from fedstill.core.task import Tensors
from fedstill.devices.energy import Cellular, Energy, Stage, Wifi, pays, rounded
from fedstill.devices.fleet import Fleet, apportion
from fedstill.participation.weighted import levels
from fedstill.runtime.assemble import make_experiment

MEGABYTE = 1_000_000


def context(round: int, seed: int = 0) -> RoundContext:
    return RoundContext(round, 1000, 10, "rest", Streams(seed).at("round", round, "rest"))


def device(
    capacity: float = 13.475, watts: float = 4, speed: float = 6, wifi: bool = True, charge: float = 0
) -> Tensors:
    values = {"capacity": capacity, "watts": watts, "speed": speed, "charge": charge}
    state = {name: torch.tensor([value], dtype=torch.float64) for name, value in values.items()}
    return {**state, "tier": torch.tensor([0]), "wifi": torch.tensor([wifi])}


def numbers(fleet: Tensors) -> dict[str, np.ndarray]:
    return {name: values.numpy() for name, values in fleet.items()}


# One device, by hand


def test_a_low_end_phone_on_a_mobile_network() -> None:
    """3500 mAh * 3.85 V = 13.475 Wh. Training 360 GFLOP at 6 GFLOP/s: 60 s, at 4 W 240 J = 0.0667 Wh. Down 1 MB at 4
    Mbit/s: 2 s, below the line's zero. Up 45 MB at 1 Mbit/s: 360 s = 0.1 h, 1.531 + 2.67 = 4.201 % = 0.56608475 Wh.
    Background 0.1 W over 422 s: 42.2 J = 0.0117 Wh."""
    energy = Fleet().spent(device(wifi=False), 0, MEGABYTE, 360e9, 45 * MEGABYTE)
    assert energy.compute == pytest.approx(240 / 3600, abs=1e-9)
    assert energy.communication == pytest.approx(13.475 * 0.04201, abs=1e-9)
    assert energy.background == pytest.approx(42.2 / 3600, abs=1e-9)
    assert energy.seconds == pytest.approx(2 + 60 + 360)
    assert energy.total == energy.compute + energy.communication + energy.background


def test_the_same_phone_on_wifi() -> None:
    """Down 1 MB at 50 Mbit/s: 0.16 s, 18.09 * 0.16 / 3600 + 0.17 = 0.170804 %. Up 45 MB at 20 Mbit/s: 18 s, -2.57 %
    on the line, so nothing."""
    energy = Fleet().spent(device(), 0, MEGABYTE, 0, 45 * MEGABYTE)
    assert energy.download.own == pytest.approx(13.475 * 0.00170804, abs=1e-9)
    assert energy.upload.own == 0
    assert energy.upload.seconds == pytest.approx(18)
    twice = Fleet(communication_factor=2).spent(device(), 0, MEGABYTE, 0, 45 * MEGABYTE)
    assert twice.download.own == pytest.approx(2 * energy.download.own, abs=1e-9)
    assert twice.seconds == energy.seconds


def test_whoever_does_nothing_spends_nothing() -> None:
    for wifi in (True, False):
        assert Fleet().spent(device(wifi=wifi), 0, 0, 0, 0) == Energy()


def test_the_lines_are_zero_until_they_cross_it() -> None:
    """Wi-Fi up: 2.68 / 21.24 h = 454.24 s at 20 Mbit/s are 1,135.6 MB. 3G down: 1.09 / 20.59 h = 190.58 s at 4 Mbit/s
    are 95.29 MB."""
    assert Wifi().upload(1135 * MEGABYTE)[1] == 0 < Wifi().upload(1136 * MEGABYTE)[1]
    assert Cellular().download(95 * MEGABYTE)[1] == 0 < Cellular().download(96 * MEGABYTE)[1]
    assert Cellular().upload(1)[1] == pytest.approx(2.67, abs=1e-6)
    assert Wifi().download(1)[1] == pytest.approx(0.17, abs=1e-6)


def test_without_offsets_energy_is_in_proportion_to_bytes() -> None:
    """3G up, 45 MB: 1.531 % and no 2.67; 1 MB a forty-fifth of it. Wi-Fi down, 1 MB: 18.09 * 0.16 / 3600 %."""
    fleet = Fleet(offsets="none")
    phone = device(wifi=False)
    whole = fleet.spent(phone, 0, 0, 0, 45 * MEGABYTE).upload.own
    assert whole == pytest.approx(13.475 * 0.01531, abs=1e-9)
    assert fleet.spent(phone, 0, 0, 0, MEGABYTE).upload.own == pytest.approx(whole / 45, abs=1e-9)
    assert fleet.spent(phone, 0, 0, 0, 45 * MEGABYTE).seconds == Fleet().spent(phone, 0, 0, 0, 45 * MEGABYTE).seconds
    assert fleet.spent(device(), 0, MEGABYTE, 0, 0).download.own == pytest.approx(13.475 * 8.04e-6, abs=1e-9)


def test_offsets_are_either_left_out_or_given() -> None:
    with pytest.raises(ValidationError, match="offsets=none leaves the offsets of links out, and a link has its own"):
        Fleet(offsets="none", cellular={"up_offset": 1.0})
    assert Fleet(offsets="none", cellular={"up_slope": 1.0}).cellular.up_slope == 1
    again = Fleet(**Fleet(offsets="none").model_dump())  # as a run's configuration is read
    assert again.offsets == "none"


def test_the_published_offsets_leave_identities_as_they_were() -> None:
    assert "offsets" not in Fleet().hashed()
    assert Fleet(offsets="none").hashed()["offsets"] == "none"
    plain, without = (make_experiment({"method": "fedavg", "fleet": fleet}) for fleet in ({}, {"offsets": "none"}))
    assert "offsets" not in plain.hashed()["fleet"]
    assert plain.digest("data") != without.digest("data")


sizes = st.integers(0, 10**11)
works = st.floats(0, 1e16)


@given(sizes, sizes, works, works, sizes, sizes, st.booleans())
@settings(deadline=None)
def test_more_bytes_or_operations_never_cost_less(
    down: int, more_down: int, flops: float, more_flops: float, up: int, more_up: int, wifi: bool
) -> None:
    fleet, phone = Fleet(), device(wifi=wifi)
    some = fleet.spent(phone, 0, down, flops, up)
    for more in (
        fleet.spent(phone, 0, down + more_down, flops, up),
        fleet.spent(phone, 0, down, flops + more_flops, up),
        fleet.spent(phone, 0, down, flops, up + more_up),
    ):
        assert more.total >= some.total >= 0
        assert more.seconds >= some.seconds >= 0


# A battery that ends

energies = st.floats(0, 30).map(rounded)
stages = st.builds(Stage, energies, energies, st.floats(0, 1e5))


@given(energies, st.builds(Energy, stages, stages, stages))
@settings(deadline=None)
def test_what_was_there_is_left_or_used(charge: float, energy: Energy) -> None:
    paid = pays(charge, energy)
    assert paid.left + paid.used.total == charge
    assert paid.left >= 0
    assert paid.alive == (energy.total <= charge)
    assert paid.alive == (paid.used == energy)
    if paid.ended:
        assert paid.left == 0
    for used, wanted in zip(paid.used, energy, strict=True):
        assert 0 <= used.own <= wanted.own
        assert used.background >= 0
        assert used.total <= wanted.total
        assert used.seconds <= wanted.seconds


@pytest.mark.parametrize(
    ("charge", "ended", "left", "seconds"),
    [
        (0.0, "download", 0.0, 0.0),
        (0.5, "download", 0.0, 5.0),
        (1.0, "training", 0.0, 10.0),
        (3.0, "training", 0.0, 30.0),
        (5.5, "upload", 0.0, 65.0),
        (6.0, None, 0.0, 80.0),
        (6.5, None, 0.5, 80.0),
    ],
)
def test_where_a_battery_ends(charge: float, ended: str | None, left: float, seconds: float) -> None:
    """Download 1 Wh in 10 s, training 3 + 1 Wh in 40 s, upload 1 Wh in 30 s; half the energy, half the time."""
    work = Energy(Stage(1.0, 0.0, 10.0), Stage(3.0, 1.0, 40.0), Stage(1.0, 0.0, 30.0))
    paid = pays(charge, work)
    assert (paid.ended, paid.left, paid.used.seconds) == (ended, left, seconds)
    assert paid.alive == (ended is None)


def test_a_broken_off_stage_keeps_its_mixture() -> None:
    paid = pays(2.0, Energy(training=Stage(3.0, 1.0, 40.0)))
    assert paid.used.training == Stage(1.5, 0.5, 20.0)
    assert paid.used.compute == 1.5


# The fleet


@given(
    st.lists(st.floats(0, 100), min_size=1, max_size=6).filter(lambda shares: sum(shares) > 1e-3), st.integers(1, 500)
)
def test_shares_are_exact_to_less_than_one(shares: list[float], seats: int) -> None:
    counts = apportion(shares, seats)
    assert counts.sum() == seats
    assert all(abs(count - seats * share / sum(shares)) < 1 + 1e-9 for count, share in zip(counts, shares, strict=True))


def test_tiers_and_links_by_their_shares() -> None:
    """Of 40 clients a third each is 13.33: 14, 13, 13. Seven tenths on Wi-Fi: 28."""
    fleet = numbers(Fleet().start(40, Streams(3)))
    assert np.bincount(fleet["tier"]).tolist() == [14, 13, 13]
    assert fleet["wifi"].sum() == 28
    crossed = {(int(tier), bool(wifi)) for tier, wifi in zip(fleet["tier"], fleet["wifi"], strict=True)}
    assert len(crossed) == 6
    assert Fleet().order == ("low", "mid", "high")
    assert {name: values.dtype for name, values in Fleet().start(4, Streams(0)).items()} == {
        **dict.fromkeys(["charge", "capacity", "watts", "speed"], torch.float64),
        "tier": torch.int64,
        "wifi": torch.bool,
    }


def test_every_value_is_drawn_from_its_tiers_range_and_all_of_it() -> None:
    fleet, settings = numbers(Fleet().start(6000, Streams(1))), Fleet()
    for index, name in enumerate(settings.order):
        tier, mine = settings.tiers[name], fleet["tier"] == index
        drawn = {
            "capacity": fleet["capacity"][mine] * 1000 / 3.85,
            "watts": fleet["watts"][mine],
            "speed": fleet["speed"][mine],
            "charge": fleet["charge"][mine] / fleet["capacity"][mine],
        }
        for what, values in drawn.items():
            low, high = getattr(tier, what)
            assert low - 1e-6 <= values.min() < low + 0.02 * (high - low)
            assert high - 0.02 * (high - low) < values.max() <= high + 1e-6
            assert abs(values.mean() - (low + high) / 2) < 0.03 * (high - low)
    assert abs(np.corrcoef(fleet["watts"][fleet["tier"] == 0], fleet["speed"][fleet["tier"] == 0])[0, 1]) < 0.1


def test_a_seed_is_a_fleet() -> None:
    one, same, other = (numbers(Fleet().start(50, Streams(seed))) for seed in (1, 1, 2))
    assert all((one[name] == same[name]).all() for name in one)
    assert all((one[name] != other[name]).any() for name in one)


def test_a_setting_changes_only_what_it_says() -> None:
    usual = numbers(Fleet().start(50, Streams(1)))
    wireless = numbers(Fleet(wifi_share=1.0).start(50, Streams(1)))
    assert wireless["wifi"].all()
    assert all((usual[name] == wireless[name]).all() for name in usual if name != "wifi")


WRITTEN = """
tiers:
  sensor: {share: 3, capacity: [1000, 1200], watts: 1, speed: 0.5, charge: [0.9, 1]}
  low: {share: 1, watts: [2, 3]}
wifi: {up: 5}
cellular: {down: 20, up: 10, up_offset: 0}
volts: 4
"""


def test_tiers_and_links_of_ones_own() -> None:
    """A number is a range of one value; what a known tier or link does not say it keeps."""
    settings = Fleet.model_validate(yaml.safe_load(WRITTEN))
    assert settings.order == ("sensor", "low")
    assert settings.tiers["low"].model_dump() == {
        "share": 1,
        "capacity": (3000, 4000),
        "watts": (2, 3),
        "speed": (4, 8),
        "charge": (0.4, 0.8),
    }
    assert (settings.wifi.up, settings.wifi.down, settings.wifi.up_offset) == (5, 50, -2.68)
    assert (settings.cellular.up, settings.cellular.up_offset, settings.cellular.up_slope) == (10, 0, 15.31)
    fleet = numbers(settings.start(8, Streams(0)))
    assert np.bincount(fleet["tier"]).tolist() == [6, 2]
    sensors = fleet["tier"] == 0
    assert (fleet["watts"][sensors] == 1).all()
    assert ((fleet["capacity"][sensors] >= 4.0) & (fleet["capacity"][sensors] <= 4.8)).all()


def test_the_order_in_which_tiers_are_written_does_not_matter() -> None:
    """A stored configuration may have its keys sorted; resumed, it must be the same fleet."""
    settings = Fleet.model_validate(yaml.safe_load(WRITTEN))
    stored = json.dumps(settings.model_dump(mode="json"), sort_keys=True)
    again = Fleet.model_validate(json.loads(stored))
    turned = Fleet(tiers=dict(reversed(settings.tiers.items())), wifi=settings.wifi, volts=4)
    one = numbers(settings.start(30, Streams(5)))
    for other in (again, turned):
        assert other.order == settings.order
        assert all((one[name] == values).all() for name, values in numbers(other.start(30, Streams(5))).items())
    assert again == settings


@pytest.mark.parametrize(
    ("written", "sentence"),
    [
        ({"tiers": {}}, "a fleet needs at least one tier"),
        ({"tiers": {"low": {"share": 0}}}, "at least one tier needs a share above zero"),
        ({"tiers": {"low": {"share": -1}}}, "greater than or equal to 0"),
        (
            {"tiers": {"sensor": {"capacity": 1000}}},
            "tier 'sensor' needs watts, speed: only low, mid, high have values",
        ),
        ({"tiers": {"low": {"wats": 3}}}, r"tiers.low.wats\n.*not permitted"),
        ({"tiers": {"low": {"capacity": [4000, 3000]}}}, "from the lowest to the highest, not from 4000 to 3000"),
        ({"tiers": {"low": {"capacity": [1, 2, 3]}}}, r"give one number, or a range as \[lowest, highest\]"),
        ({"tiers": {"low": {"capacity": "big"}}}, "give one number, or a range .* not 'big'"),
        ({"tiers": {"low": {"capacity": True}}}, "give one number"),
        ({"tiers": {"low": {"speed": 0}}}, "must be above zero, not 0"),
        ({"tiers": {"low": {"charge": [0.5, 1.5]}}}, "is a share of the capacity, from 0 to 1, not 0.5 to 1.5"),
        ({"tiers": {"low": 3}}, "valid dictionary or instance of Tier"),
        ({"tiers": ["low"]}, "valid dictionary"),
        ({"wifi": {"upp": 3}}, r"wifi.upp\n.*not permitted"),
        ({"wifi": {"up": 0}}, "greater than 0"),
        ({"wifi_share": 1.1}, "less than or equal to 1"),
        ({"recharge": -0.1}, "greater than or equal to 0"),
        ({"background": float("nan")}, "finite number"),
        ({"batteries": 3}, "not permitted"),
    ],
)
def test_settings_that_make_no_sense_are_refused(written: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValidationError, match=sentence) as refused:
        Fleet.model_validate(written)
    assert refused.value.error_count() == 1


# Rest


def test_rest_by_hand() -> None:
    """0.25 h at 0.1 W drain 0.025 Wh; 5 % of 10 Wh are gained: at the most what is missing, and only by the idle."""
    settings = Fleet(plugged=1.0)
    charge = torch.tensor([5.0, 5.0, 9.75, 0.0, 0.0], dtype=torch.float64)
    state = {"charge": charge, "capacity": torch.full((5,), 10.0, dtype=torch.float64)}
    idle = np.array([True, False, True, True, False])
    rested = settings.rest(state, idle, context(0))
    assert rested.drained == pytest.approx([0.025, 0.025, 0.025, 0, 0], abs=1e-9)
    assert rested.gained == pytest.approx([0.5, 0, 0.275, 0.5, 0], abs=1e-9)
    assert rested.fleet["charge"].tolist() == pytest.approx([5.475, 4.975, 10, 0.5, 0], abs=1e-9)
    assert rested.fleet["charge"][2] == 10
    assert charge.tolist() == [5, 5, 9.75, 0, 0]
    assert levels(rested.fleet)[2] == 1


def test_some_of_the_idle_are_plugged_in_whoever_else_is_idle() -> None:
    settings = Fleet(plugged=0.3, hours=0)
    state = {**settings.start(5000, Streams(0))}
    state["charge"] = torch.zeros(5000, dtype=torch.float64)
    everybody = settings.rest(state, np.ones(5000, bool), context(4)).gained > 0
    some = np.arange(5000) % 3 == 0
    assert abs(everybody.mean() - 0.3) < 4 * (0.3 * 0.7 / 5000) ** 0.5
    assert ((settings.rest(state, some, context(4)).gained > 0) == (everybody & some)).all()
    assert ((settings.rest(state, some, context(5)).gained > 0) != (everybody & some)).any()


def test_neither_recharge_nor_drain_if_so_set() -> None:
    settings = Fleet(recharge=0, background=0)
    state = settings.start(20, Streams(0))
    assert torch.equal(settings.rest(state, np.ones(20, bool), context(0)).fleet["charge"], state["charge"])


fleets = st.builds(
    Fleet,
    tiers=st.dictionaries(
        st.sampled_from(["low", "mid", "high"]), st.fixed_dictionaries({"share": st.floats(0.1, 5)}), min_size=1
    ),
    volts=st.floats(1, 12),
    wifi_share=st.floats(0, 1),
    communication_factor=st.floats(0, 50),
    background=st.floats(0, 20),
    hours=st.floats(0, 24),
    recharge=st.floats(0, 1),
    plugged=st.floats(0, 1),
)
jobs = st.tuples(st.integers(0, 10**9), st.floats(0, 1e14), st.integers(0, 10**9))


@given(fleets, st.integers(1, 12), st.lists(st.dictionaries(st.integers(0, 11), jobs), max_size=8), st.integers(0, 99))
@settings(deadline=None, max_examples=60)
def test_over_any_rounds_energy_is_conserved_and_batteries_keep_their_bounds(
    settings: Fleet, clients: int, rounds: list[dict[int, tuple[int, float, int]]], seed: int
) -> None:
    """To the last bit: what each had at the start and gained is what it has, used and drained."""
    state = settings.start(clients, Streams(seed))
    before = state["charge"].numpy().copy()
    gained, drained, used = np.zeros(clients), np.zeros(clients), np.zeros(clients)
    for round, asked in enumerate(rounds):
        charge = state["charge"].clone()
        idle = np.ones(clients, bool)
        for client, job in asked.items():
            if client < clients:
                paid = pays(float(charge[client]), settings.spent(state, client, *job))
                charge[client], idle[client] = paid.left, False
                used[client] += paid.used.total
        state, lost, won = settings.rest({**state, "charge": charge}, idle, context(round, seed))
        gained, drained = gained + won, drained + lost
        assert (lost >= 0).all()
        assert (won >= 0).all()
        assert (won[~idle] == 0).all()
        assert ((levels(state) >= 0) & (levels(state) <= 1)).all()
    assert (state["charge"].numpy() == before + gained - drained - used).all()


def test_a_million_clients_without_a_loop() -> None:
    """A tenth of what must be possible, in a tenth of its time: vectors all the way."""
    settings = Fleet()
    state = settings.start(1_000_000, Streams(0))
    rested = settings.rest(state, np.ones(1_000_000, bool), context(0))
    assert np.bincount(state["tier"].numpy()).tolist() == [333_334, 333_333, 333_333]
    assert 0.29 < (rested.gained > 0).mean() < 0.31


# What a round costs


@pytest.mark.parametrize(
    ("name", "wifi", "percent"),
    [("low", True, 0.67), ("low", False, 4.51), ("mid", True, 0.27), ("high", True, 0.22), ("high", False, 4.04)],
)
def test_a_round_neither_kills_a_phone_nor_costs_nothing(name: str, wifi: bool, percent: float) -> None:
    """1,500 images, one epoch and one pass for their features: 4 * 1500 passes of 58.38 MFLOP = 350 GFLOP; 431 kB down,
    1,500 * 25,088 bytes of features and 8 of each label up, 37.6 MB. At the middle of the ranges.

    Low: 350 / 6 = 58.4 s, 4 W: 0.0649 Wh of 13.475, 0.481 %. Background 0.015 % on Wi-Fi, 0.074 % with 301 s of 3G.
    Wi-Fi 0.17 %; 3G 15.31 * 301 / 3600 + 2.67 = 3.95 %.
    """
    settings = Fleet()
    tier = settings.tiers[name]
    capacity, watts, speed = (sum(span) / 2 for span in (tier.capacity, tier.watts, tier.speed))
    phone = device(capacity * 3.85 / 1000, watts, speed, wifi)
    flops = 2 * (784 * 32 * 9 + 784 * 64 * 288 + 196 * 128 * 576 + 6272 * 10)
    energy = settings.spent(phone, 0, 431_000, 4 * 1500 * flops, 1500 * (25_088 + 8))
    assert 100 * energy.total / float(phone["capacity"]) == pytest.approx(percent, abs=0.01)
