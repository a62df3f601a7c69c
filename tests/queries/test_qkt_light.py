"""The first phase for everybody, in three ways; the second is the query's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import fedstill
from fedstill.core.errors import InputError
from fedstill.core.kinds import state_of
from fedstill.core.message import digest, part
from fedstill.core.protocols import Meter
from fedstill.engines import InProcess
from fedstill.queries.peers import built
from fedstill.queries.qkt import for_epochs
from fedstill.queries.qkt_light import LightSettings, QKTLight
from fedstill.queries.transfer_loss import QueryLesson, learn, query_loss
from fedstill.runtime.egress_manifest import egress_manifest
from fedstill.runtime.run import execute

from .asked import MIXED, SHORT, Table, left, planned, played

EASY = {**SHORT, "head_epochs": 1, "threshold": 0.0}
SERVER = {"first_phase": "server", "proxy": "patches:noise:64x64"}
VOLUNTEER = {"first_phase": "volunteer"}
WAYS = {"student": {}, "server": SERVER, "volunteer": VOLUNTEER}


def extractors(states: list[Any], place: str = "model/") -> list[str]:
    return [digest(part(state, f"{place}parameters/extractor.")) for state in states]


def test_by_the_student_it_is_qkt_that_learns_from_all_and_heeds_all(tmp_path: Path) -> None:
    """With a second phase that filters and masks nothing either, they are the same computation."""
    light = played(tmp_path, "qkt-light", {**EASY, "mask": False})
    heavy = played(tmp_path, "qkt", {**EASY, "mask": False})
    assert light.run.sha256 == heavy.run.sha256
    masked = [played(tmp_path, name, EASY).run.sha256 for name in ("qkt-light", "qkt")]
    assert len({light.run.sha256, *masked}) == 3


def test_the_first_phase_of_a_student_is_that_of_naive_distillation(tmp_path: Path) -> None:
    light, naive = played(tmp_path, "qkt-light", EASY), played(tmp_path, "naive-kd", SHORT)
    assert extractors(light.states) == extractors(naive.states)
    assert light.models() != naive.models()


@pytest.mark.parametrize("way", ["server", "volunteer"])
def test_one_model_for_all_gives_everybody_its_extractor(tmp_path: Path, way: str) -> None:
    """And leaves no trace in the server's or a client's state."""
    ended = played(tmp_path, "qkt-light", {**EASY, **WAYS[way]})
    assert len(set(extractors(ended.states))) == 1
    assert len(set(extractors(ended.states, "before/"))) == 4
    assert len(set(ended.models())) == 4  # heads are the query's
    assert {name.split("/")[0] for name in ended.server} == {"start"}
    assert {name.split("/")[0] for state in ended.states for name in state} == {"before", "model", "query"}


@pytest.mark.parametrize("way", WAYS)
def test_a_class_that_nobody_knows_leaves_everybody_as_they_were(tmp_path: Path, way: str) -> None:
    ended = played(tmp_path, "qkt-light", {**EASY, **WAYS[way], "threshold": 1.0})
    assert ended.models() == ended.models("before/")
    assert {name.split("/")[0] for state in ended.states for name in state} == {"before", "model", "query", "unmatched"}


def test_the_volunteer_is_the_client_with_most_samples() -> None:
    """Only it is asked, for what `naive-kd` would make of its model: the mean of labels and of all others' words."""
    table = Table(planned("qkt-light", {**EASY, **VOLUNTEER}))
    offer, volunteer, _ = table.plan.method.exchanges(table.server, 0)
    table.dispatch(offer)
    samples = [who.samples for who in table.plan.profiles]
    largest = samples.index(max(samples))
    assert [table.request(volunteer, client) is not None for client in range(4)] == [
        client == largest for client in range(4)
    ]
    before = digest(table.states[largest])
    (reply,) = table.dispatch(volunteer)
    assert reply.profile.id == largest
    assert digest(table.states[largest]) == before
    assert digest(part(table.server, "common/")) == digest(reply.message.part("model/"))


def test_of_equally_large_clients_the_first_volunteers() -> None:
    table = Table(planned("qkt-light", {**EASY, **VOLUNTEER}))
    offer, volunteer, _ = table.plan.method.exchanges(table.server, 0)
    table.dispatch(offer)
    table.server = {name: torch.tensor(5) if name.endswith("/samples") else t for name, t in table.server.items()}
    assert [table.request(volunteer, client) is not None for client in range(4)] == [True, False, False, False]


def test_the_server_learns_on_samples_without_labels_from_all() -> None:
    """From the common start, towards the sum of what the four say of its patches."""
    plan = planned("qkt-light", {**EASY, **SERVER})
    table, method = Table(plan), plan.method
    assert isinstance(method, QKTLight)
    assert method.proxy.data.labels() is None
    offer, transfer = method.exchanges(table.server, 0)
    table.dispatch(offer)
    turn = table.context(transfer)
    common = part(transfer.prepare(table.server, turn), "common/")
    model = plan.task.build("mlp", part(table.server, "start/mlp/"))
    peers = list(built(plan.task, part(table.server, "peer/")).values())
    loss = query_loss(torch.ones(10))
    streams = turn.streams.at("whole")
    learn(
        model, QueryLesson(plan.task, peers, method.proxy.data, loss, for_epochs(method.training, 1), streams, Meter())
    )
    assert len(peers) == 4
    assert digest(common) == digest(state_of(model))
    assert digest(common) != digest(part(table.server, "start/mlp/"))


def test_a_round_without_its_volunteer_is_skipped(tmp_path: Path, tampered: Any) -> None:
    """Nothing of it counts: no client keeps what it trained, and the next round starts where this one did."""

    def spoilt(reply: Any, turn: Any) -> dict[str, Any] | None:
        if turn.exchange != "volunteer" or turn.round:
            return None
        return {name: t * float("nan") if t.is_floating_point() else t for name, t in reply.message.items()}

    plan = planned("qkt-light", {**EASY, **VOLUNTEER}, rounds=2)
    ended = left(fedstill.Run(execute(plan, tampered(InProcess(), spoilt), tmp_path).path))
    first, second = ended.run.journal
    assert first.skipped == "0 of 4 replies (1 refused as not finite), and 1 are needed"
    assert [lost.reason for lost in first.failures] == ["refused"]
    assert first.accepted == ()
    assert second.skipped is None
    assert second.accepted == (0, 1, 2, 3)
    assert len(set(extractors(ended.states))) == 1


def test_a_volunteer_costs_a_model_up_and_down(tmp_path: Path) -> None:
    """Up: four models and the volunteer's. Down: four starts, three peers for each of four and for the volunteer, and
    the common model for four."""
    model = 4 * (64 * 200 + 200 + 200 * 200 + 200 + 200 * 10 + 10)
    traffic = played(tmp_path, "qkt-light", {**EASY, **VOLUNTEER}).run.journal[0].bytes
    assert traffic["up"] == pytest.approx(5 * model, rel=0.03)
    assert traffic["down"] == pytest.approx((4 + 12 + 3 + 4) * model, rel=0.03)


@pytest.mark.parametrize("way", WAYS)
def test_what_leaves_can_be_listed_before_anything_is_offered(way: str) -> None:
    plan = planned("qkt-light", {**EASY, **WAYS[way]})
    leaves = egress_manifest(plan)["leaves"]
    models = [line for line in leaves if line["kind"] == "parameters" and line["bytes"] > 200_000]
    assert [line["exchange"] for line in models] == ["train", "volunteer"][: 1 + (way == "volunteer")]
    assert egress_manifest(plan, rehearse=True)["leaves"]


@pytest.mark.parametrize("way", ["server", "volunteer"])
def test_one_model_for_all_needs_one_architecture(way: str) -> None:
    with pytest.raises(InputError, match=f"one model for all is learnt by the {way}, and clients have cnn and mlp"):
        planned("qkt-light", {**EASY, **WAYS[way]}, **MIXED)


def test_students_may_differ_in_architecture(tmp_path: Path) -> None:
    ended = played(tmp_path, "qkt-light", EASY, **MIXED)
    assert all(before != after for before, after in zip(ended.models("before/"), ended.models(), strict=True))


def test_a_server_without_samples_is_refused() -> None:
    with pytest.raises(InputError, match=r"set method\.proxy"):
        planned("qkt-light", {**EASY, "first_phase": "server"})


def test_settings_are_described() -> None:
    assert all(field.description for field in LightSettings.model_fields.values())
    assert LightSettings().head_epochs == 5
