"""One round's book, by hand; and what whole runs make of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedstill.core.client import answer
from fedstill.core.errors import InputError, RunError
from fedstill.core.message import Message
from fedstill.core.participation_protocols import DropoutEvent
from fedstill.core.protocols import Client, Profile, Reply, RoundContext
from fedstill.core.streams import Streams
from fedstill.devices.clusters import Clusters, Statistics
from fedstill.devices.fleet import Fleet
from fedstill.engines import InProcess
from fedstill.methods.fedavg import FedAvg
from fedstill.participation.dropout import Independent, NoDropout
from fedstill.participation.policies import Everyone, Random
from fedstill.participation.round_participation import Participants, ParticipationRound
from fedstill.participation.weighted import BatteryAware
from fedstill.runtime.plan import Plan
from fedstill.runtime.run import execute

PROFILES = [Profile(client, 10, "cnn") for client in range(4)]
# One kind of device: 1 Wh, 3.6 W, 1 GFLOP/s; nothing else costs anything unless a test says so.
PLAIN = {
    "tiers": {"phone": {"capacity": 1000, "watts": 3.6, "speed": 1.0, "charge": 1.0}},
    "volts": 1.0,
    "wifi_share": 1.0,
    "background": 0.0,
    "communication_factor": 0.0,
    "plugged": 0.0,
}


def context(round: int = 0) -> RoundContext:
    return RoundContext(round, 5, len(PROFILES), "select", Streams(0).at("round", round, "select"))


def book(participants: Participants, charge: list[float] | None = None, **more: torch.Tensor) -> ParticipationRound:
    fleet = {**participants.start(PROFILES, Streams(0).at("fleet")), **more}
    if charge is not None:
        fleet["charge"] = torch.tensor(charge, dtype=torch.float64)
    return participants.begin_round(fleet, PROFILES, context())


def with_batteries(**settings: Any) -> Participants:
    policy = settings.pop("policy", Everyone())
    dropout = settings.pop("dropout", NoDropout())
    return Participants(policy, dropout, Fleet(**{**PLAIN, **settings}), costs={"cnn": 1e9})


def test_without_batteries_nothing_is_charged_and_nothing_is_said() -> None:
    opened = book(Participants())
    assert opened.cohort() == [0, 1, 2, 3]
    assert opened.charge(PROFILES[0], 1000, 1e12, 1000) is None
    assert opened.end([0], {}) == {}
    assert opened.record() == {}


def test_work_is_paid_until_the_battery_ends() -> None:
    """At 3.6 W a pass of 1 GFLOP takes a second and 0.001 Wh: 250 passes leave 0.75 of 1 Wh, 800 more are too many."""
    opened = book(with_batteries())
    opened.cohort()
    assert opened.charge(PROFILES[1], 0, 250, 0) is None
    assert opened.bill.charge_of(1) == 0.75
    assert opened.charge(PROFILES[1], 0, 800, 0) == "its battery ran out in training"
    assert (opened.bill.charge_of(1), opened.battery_empty(1), opened.battery_empty(0)) == (0.0, True, False)
    after = opened.end([], {})
    assert after["charge"].tolist() == [1.0, 0.0, 1.0, 1.0]
    told = opened.record()["fleet"].devices[1]
    assert (told.before, told.after, told.compute) == (1.0, 0.0, 1.0)
    assert told.seconds == pytest.approx(1000)


def test_expected_work_comes_from_samples_and_epochs() -> None:
    """Ten samples, two epochs, and a backward pass that costs two: 60 passes."""
    participants = Participants(epochs=2)
    assert book(participants).expected_work(PROFILES[0]) == 60


def test_replacements_come_from_the_same_cluster_and_nobody_twice() -> None:
    """Clients 0 and 1 are alike, and so are 2 and 3; 0 fails, then its replacement."""
    participants = Participants(Random(number=1), Independent(rate=0.0, replace=True), clusters=Clusters(number=2))
    opened = book(participants, cluster=torch.tensor([0, 0, 1, 1]))
    opened.sampled = {0}
    assert opened.replacements([0]) == {0: 1}
    assert opened.replacements([0]) == {}, "he has one already"
    (second,) = opened.replacements([0, 1]).values()
    assert second in (2, 3)
    assert len(opened.replacements([0, 1, second])) == 1
    assert opened.replacements([0, 1, 2, 3]) == {}, "nobody is left"
    assert opened.dropout_events([1], replacing=True) == {}


def test_a_device_with_an_empty_battery_replaces_nobody() -> None:
    opened = book(with_batteries(dropout=NoDropout(replace=True), policy=Random(number=1)), [1.0, 0.0, 0.0, 1.0])
    opened.sampled = {0}
    assert opened.replacements([0]) == {0: 3}
    aware = with_batteries(dropout=NoDropout(replace=True), policy=BatteryAware(number=1, threshold=0.5))
    opened = book(aware, [1.0, 0.4, 0.6, 0.4])
    opened.sampled = {0}
    assert opened.replacements([0]) == {0: 2}


def test_replacements_can_drop_if_that_is_wanted() -> None:
    certain = Independent(rate=1.0, replace=True, replacements_can_drop=True)
    assert book(Participants(dropout=certain)).dropout_events([2], replacing=True) == {2: DropoutEvent("after")}


def test_the_idle_rest_and_those_who_were_asked_do_not() -> None:
    participants = with_batteries(policy=Random(number=1), plugged=1.0, recharge=0.25)
    opened = book(participants, [0.5, 0.5, 0.5, 0.9])
    (asked,) = opened.cohort()
    opened.charge(PROFILES[asked], 0, 0, 0)
    after = opened.end([asked], {})["charge"].tolist()
    expected = [0.75, 0.75, 0.75, 1.0]
    expected[asked] = [0.5, 0.5, 0.5, 0.9][asked]
    assert after == expected


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0, 900), st.integers(0, 10**8)), max_size=12))
def test_energy_is_neither_made_nor_lost(works: list[tuple[int, float, int]]) -> None:
    """All charges before, less what was spent and drained, and what was gained: exactly all charges after."""
    participants = with_batteries(background=0.2, communication_factor=1.0, plugged=0.5, wifi_share=0.5)
    opened = book(participants)
    before = float(opened.fleet["charge"].sum())
    opened.cohort()
    for client, work, size in works:
        opened.charge(PROFILES[client], size, work, size // 3)
    after = opened.end([], {})["charge"]
    fleet = opened.record()["fleet"]
    kinds = ("compute", "communication", "background")
    spent = sum(getattr(one, kind) for one in fleet.devices.values() for kind in kinds)
    assert before - spent - fleet.drained + fleet.gained == float(after.sum()) == fleet.charge
    assert bool(((after >= 0) & (after <= 1)).all())


def test_history_and_losses_are_kept_where_somebody_asks_for_them() -> None:
    opened = book(
        Participants(Random(number=2)), asked=torch.zeros(4, dtype=torch.int64), finished=torch.zeros(4).long()
    )
    first, second = opened.cohort()
    after = opened.end([first], {})
    assert after["asked"][[first, second]].tolist() == [1, 1]
    assert (after["finished"][first], after["finished"][second]) == (1, 0)
    opened = book(Participants(), loss=torch.full((4,), torch.nan).double())
    assert opened.end([2], {2: 0.5})["loss"][2] == 0.5


@pytest.mark.parametrize(
    ("participants", "given", "sentence"),
    [
        (Participants(BatteryAware(number=2)), {"labels"}, "participation needs devices with batteries"),
        (Participants(clusters=Clusters(number=5)), {"labels"}, "clusters.number is 5, but there are only 4 clients"),
        (Participants(clusters=Clusters(statistics="labels")), set(), "clusters needs labels, and this data has none"),
    ],
    ids=["no batteries", "more clusters than clients", "no labels"],
)
def test_what_cannot_work_is_refused(participants: Participants, given: set[str], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        participants.check(4, given)


Make = Callable[..., Plan]
ONE = {"name": "random", "number": 1}


def played(tiny_plan: Make, folder: Path, **settings: Any) -> list[Any]:
    given = {"training": {"epochs": 1, "batch": 32}, "rounds": 3, "model": "mlp", **settings}
    with InProcess() as engine:
        return execute(tiny_plan(**given), engine, folder).journal()


def test_all_flat_the_round_is_skipped_and_the_run_goes_on(tiny_plan: Make, tmp_path: Path) -> None:
    """Nobody has any charge, so nobody can be asked, and all are idle and plugged in."""
    flat = {"tiers": {"low": {"charge": 0.0}}, "plugged": 1.0, "recharge": 0.5, "background": 0.0}
    journal = played(tiny_plan, tmp_path, fleet=flat)
    assert journal[0].skipped is not None
    assert {lost.reason for lost in journal[0].failures} == {"battery"}
    assert journal[1].accepted == (0, 1, 2, 3, 4)


def test_a_battery_aware_policy_waits_for_batteries(tiny_plan: Make, tmp_path: Path) -> None:
    low = {"tiers": {"low": {"charge": 0.15}}, "plugged": 1.0, "recharge": 0.1, "background": 0.0}
    journal = played(tiny_plan, tmp_path, fleet=low, participation={"name": "battery-aware", "number": 2})
    assert journal[0].skipped is not None
    assert journal[0].failures == ()
    assert len(journal[1].accepted) == 2


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "qkt", "local-only", "fedgkt"])
def test_lost_on_the_way_and_replaced_with_any_method(tiny_plan: Make, tmp_path: Path, method: str) -> None:
    journal = played(
        tiny_plan,
        tmp_path,
        method=method,
        rounds=2,
        clusters={"number": 2},
        participation={"name": "clustered", "number": 2},
        dropout={"name": "independent", "rate": 0.5, "of_cohort": True, "when": "during", "replace": True},
    )
    for record in journal:
        (lost,) = record.failures
        assert lost.reason == "dropped"
        assert len(record.accepted) == 2
        assert record.replacements[lost.client] in record.accepted
        assert lost.client not in record.accepted


def test_a_run_conserves_energy(tiny_plan: Make, tmp_path: Path) -> None:
    journal = played(tiny_plan, tmp_path, fleet={"plugged": 0.5}, participation={"name": "random", "number": 2})
    charge = None
    for record in journal:
        told = record.fleet
        kinds = ("compute", "communication", "background")
        spent = sum(getattr(one, kind) for one in told.devices.values() for kind in kinds)
        if charge is not None:
            assert charge - spent - told.drained + told.gained == told.charge
        charge = told.charge
        assert tuple(sorted(told.devices)) == record.sampled


def test_the_training_loss_is_that_of_the_cohort_and_of_those_who_stand_in(tiny_plan: Make, tmp_path: Path) -> None:
    """Everybody else is left where they are, so that only who replied matters: the mean of all three by samples."""
    dropped = {"name": "independent", "rate": 0.34, "of_cohort": True, "when": "before", "replace": True}
    settings = {"participation": {"name": "random", "number": 3}, "dropout": dropped, "rounds": 1}
    (record,) = played(tiny_plan, tmp_path, **settings)
    plan = tiny_plan(training={"epochs": 1, "batch": 32}, model="mlp", **settings)
    context = RoundContext(0, 1, 5, "train", plan.streams.at("round", 0, "train"))
    losses = {}
    for client in record.accepted:
        who = plan.profiles[client]
        request = plan.method.request(plan.method.start(plan.streams), who, context)
        reply = answer(plan.clients, plan.method, who, request, {}, context)
        assert isinstance(reply, Reply)
        losses[client] = float(reply.message["loss/cross-entropy"])
    samples = {client: plan.profiles[client].samples for client in losses}
    assert len(losses) == 3
    mean = sum(losses[client] * samples[client] for client in losses) / sum(samples.values())
    assert record.loss["cross-entropy"] == pytest.approx(mean, rel=1e-9)


def test_a_stand_in_that_fails_does_not_stop_the_run(
    tiny_plan: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dropped = {"name": "independent", "rate": 0.34, "of_cohort": True, "when": "before", "replace": True}
    settings = {"participation": {"name": "random", "number": 3}, "dropout": dropped, "rounds": 1}
    (record,) = played(tiny_plan, tmp_path / "a", **settings)
    (by,) = record.replacements.values()
    reply = FedAvg.reply

    def failing(self: FedAvg, client: Client, request: Message, context: RoundContext) -> Message:
        if client.profile.id == by:
            raise RuntimeError("no memory left")
        return reply(self, client, request, context)

    monkeypatch.setattr(FedAvg, "reply", failing)
    (again,) = played(tiny_plan, tmp_path / "b", **settings)
    assert list(again.accepted) == [client for client in record.accepted if client != by]
    assert {lost.reason for lost in again.failures} == {"dropped", "failed"}


def test_a_survey_in_which_somebody_fails_is_in_the_journal(
    tiny_plan: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure = Statistics.reply

    def failing(self: Statistics, client: Client, request: Message, context: RoundContext) -> Message:
        if client.profile.id == 3:
            raise RuntimeError("no numbers")
        return measure(self, client, request, context)

    monkeypatch.setattr(Statistics, "reply", failing)
    journal = played(tiny_plan, tmp_path, clusters={"number": 2}, rounds=2)
    assert [one.client for record in journal for told in record.surveys for one in told.failures] == [3, 3]
    monkeypatch.setattr(Statistics, "reply", lambda *_: 1 / 0)
    with pytest.raises(RunError, match="every client failed"):
        played(tiny_plan, tmp_path / "b", clusters={"number": 2})


def test_privacy_does_not_count_what_surveys_ask_for(tiny_plan: Make) -> None:
    private = {"method": {"name": "fedavg", "weights": "uniform"}, "privacy": "client-level"}
    with pytest.raises(InputError, match="privacy counts what leaves in training"):
        tiny_plan(**private, clusters={"number": 2})
    with pytest.raises(InputError, match="privacy counts what leaves in training"):
        tiny_plan(**private, participation={"name": "power-of-choice", "number": 2})


def test_a_survey_is_paid_and_counted(tiny_plan: Make, tmp_path: Path) -> None:
    """Statistics of all clients are two numbers of eight bytes each, beside a header; they come in the first round.

    On 3G any upload takes 2.67 % of a battery, so that those who only answer pay as much and nothing else."""
    mobile = {"wifi_share": 0.0, "background": 0.0, "plugged": 0.0}
    with_clusters = played(
        tiny_plan, tmp_path / "a", clusters={"number": 2}, method="local-only", fleet=mobile, participation=ONE
    )
    without = played(tiny_plan, tmp_path / "b", method="local-only", fleet=mobile, participation=ONE)
    devices = with_clusters[0].fleet.devices
    assert len(devices) == 5
    assert len(without[0].fleet.devices) == 1
    (sampled,) = with_clusters[0].sampled
    only = [one for client, one in devices.items() if client != sampled]
    assert all(one.compute == 0 and one.communication > 0 for one in only)
    more = [one.bytes.up - other.bytes.up for one, other in zip(with_clusters, without, strict=True)]
    assert more[0] > 5 * 16
    assert more[1:] == [0, 0]
    assert [record.accepted for record in with_clusters] == [record.accepted for record in without]


def test_devices_without_end_change_nothing(tiny_plan: Make, tmp_path: Path) -> None:
    """Batteries that never run out give the same replies as none at all."""
    rich = played(tiny_plan, tmp_path / "a", fleet={"communication_factor": 0.0})
    plain = played(tiny_plan, tmp_path / "b")
    assert [record.metrics for record in rich] == [record.metrics for record in plain]
