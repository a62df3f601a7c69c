"""Query-based transfer as a method: what is offered, kept, relayed and left alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import fedstill
from fedstill.core.client import answer
from fedstill.core.errors import InputError
from fedstill.core.kinds import state_of
from fedstill.core.message import digest, part
from fedstill.core.protocols import Failure
from fedstill.engines import InProcess
from fedstill.methods.local_only import held_out
from fedstill.queries.peers import built
from fedstill.queries.qkt import QKT, NaiveSettings, QKTSettings, QueryTransfer
from fedstill.queries.transfer_loss import probe
from fedstill.runtime.egress_manifest import egress_manifest
from fedstill.runtime.run import execute

from .asked import MIXED, SHORT, Table, left, planned, played

PATIENT = {"patience": 1, "hold_out": 0.3}


@pytest.mark.parametrize("settings", [{}, PATIENT], ids=["all epochs", "with patience"])
def test_the_model_that_is_offered_is_the_one_trained_alone(tmp_path: Path, settings: dict[str, Any]) -> None:
    training = {"epochs": 4, "batch": 64, "optimiser": "adam", "rate": 1e-2}
    alone = played(tmp_path, "local-only", settings, training=training)
    asked = played(tmp_path, "qkt", {**SHORT, **settings}, training=training)
    assert asked.models("before/") == alone.models()
    if settings:
        everything = played(tmp_path, "local-only", training=training)
        assert everything.models() != alone.models()  # a share was held out, or an earlier epoch was the best


def test_a_client_keeps_what_it_was_and_what_it_became(tmp_path: Path) -> None:
    ended = played(tmp_path, "qkt", {**SHORT, "threshold": 0.0})
    assert all(len(query) == 1 for query in ended.queries())
    assert all(before != after for before, after in zip(ended.models("before/"), ended.models(), strict=True))
    assert ended.models() == [digest(state_of(ended.run.model(client=client))) for client in range(4)]


def test_peers_leave_the_servers_state(tmp_path: Path) -> None:
    table = Table(planned("qkt", SHORT))
    offer, transfer = table.plan.method.exchanges(table.server, 0)
    table.dispatch(offer)
    assert {name.split("/")[1] for name in table.server if name.startswith("peer/")} == {"0", "1", "2", "3"}
    table.dispatch(transfer)
    assert {name.split("/")[0] for name in table.server} == {"start"}
    assert {name.split("/")[0] for name in played(tmp_path, "qkt", SHORT).server} == {"start"}


def test_a_client_is_never_its_own_teacher() -> None:
    table = Table(planned("qkt", SHORT))
    offer, transfer = table.plan.method.exchanges(table.server, 0)
    replies = table.dispatch(offer)
    for client in range(4):
        request = table.request(transfer, client)
        assert request is not None
        peers = built(table.plan.task, request.part("peer/"))
        assert list(peers) == [other for other in range(4) if other != client]
        for number, model in peers.items():
            theirs = replies[number].message.part("model/parameters/")
            assert all(torch.equal(tensor, theirs[name]) for name, tensor in model.named_parameters())


def test_everybody_probes_a_peer_with_the_same_noise() -> None:
    """And a peer's number is all that decides it: not the round, nor who asks."""
    plan = planned("qkt", {**SHORT, "noise": 5})
    method, model = plan.method, plan.task.build("mlp")
    assert isinstance(method, QKT)
    table = Table(plan)
    askers = [
        plan.clients(plan.profiles[client], {}, table.context(method, round)) for client, round in ((0, 0), (3, 2))
    ]
    transfers = [QueryTransfer(asker, method.settings, method.training) for asker in askers]
    first, second = (transfer.probed(2, model).probabilities for transfer in transfers)
    assert torch.equal(first, second)
    assert torch.equal(first, probe(plan.task, model, plan.streams.at("peer", 2), samples=5).probabilities)
    assert not torch.equal(first, transfers[0].probed(1, model).probabilities)
    assert [asker.meter.forward for asker in askers] == [10, 5]


def test_a_class_that_nobody_knows_leaves_everybody_as_they_were(tmp_path: Path) -> None:
    """Probabilities never exceed a threshold of one; the run goes on, and no step is taken."""
    ended = played(tmp_path, "qkt", {**SHORT, "threshold": 1.0})
    assert ended.models() == ended.models("before/")
    assert ended.run.journal[0].accepted == (0, 1, 2, 3)
    assert ended.run.journal[0].loss["teachers"] == 0.0
    answers = ended.run.answers()
    assert all(one["before"] == one["recalls"] for one in answers.values())


def test_who_asks_for_nothing_keeps_its_model(tmp_path: Path) -> None:
    ended = played(tmp_path, "qkt", {**SHORT, "threshold": 0.0}, queries={"by_hand": {2: [0, 9]}})
    assert ended.queries() == [[], [], [0, 9], []]
    changed = [one != other for one, other in zip(ended.models(), ended.models("before/"), strict=True)]
    assert changed == [False, False, True, False]


@pytest.mark.parametrize("below", [0.001, 0.5, 1.0])
def test_a_query_by_low_accuracy_is_judged_on_samples_held_out(below: float) -> None:
    """Recall by class of the model trained alone, in plain torch; a class without samples is never recognised."""
    table = Table(planned("qkt", SHORT, queries={"below": below}))
    plan, method = table.plan, table.plan.method
    assert isinstance(method, QKT)
    table.dispatch(method)
    for who, state in zip(plan.profiles, table.states, strict=True):
        client = plan.clients(who, {}, table.context(method))
        data, apart = held_out(client, method.settings.hold_out)
        batch = apart.batch(torch.arange(len(apart)))
        assert len(data) + len(apart) == who.samples
        model = plan.task.build("mlp", part(state, "model/")).eval()
        with torch.no_grad():
            right = model(batch["inputs"])[0].argmax(dim=1) == batch["labels"]
        by_class = [right[batch["labels"] == number] for number in range(10)]
        low = [not len(one) or float(one.double().mean()) < below for one in by_class]
        assert state["query"].tolist() == low
        assert sum(low) >= 7


# Ablation: what is switched off is as if it had never been


NAIVE = {"filter": False, "mask": False, "refine": False}


def test_without_filter_mask_and_refinement_it_is_naive_distillation(tmp_path: Path) -> None:
    off, naive = played(tmp_path, "qkt", {**SHORT, **NAIVE}), played(tmp_path, "naive-kd", SHORT)
    assert off.run.path != naive.run.path
    assert off.run.sha256 == naive.run.sha256
    others = {played(tmp_path, "qkt", {**SHORT, **NAIVE, one: True}).run.sha256 for one in ("mask", "refine")}
    assert len({off.run.sha256, *others}) == 3


def test_a_filter_that_admits_all_is_none(tmp_path: Path) -> None:
    one, other = (played(tmp_path, "qkt", {**SHORT, **more}) for more in ({"threshold": 0.0}, {"filter": False}))
    assert one.run.sha256 == other.run.sha256


def test_a_mask_of_ones_is_none(tmp_path: Path) -> None:
    """Dealt out evenly, every class is local; those asked for weigh 1 like the others."""
    even = {"partition": "iid", "queries": {"by_hand": {0: [1], 3: [2, 5]}}}
    shas = [
        played(tmp_path, "qkt", {**SHORT, "filter": False, **more}, **even).run.sha256
        for more in ({"query_weight": 1.0}, {"mask": False}, {"query_weight": 2.0})
    ]
    assert shas[0] == shas[1] != shas[2]


def test_heads_that_are_wholly_frozen_stay(tmp_path: Path) -> None:
    ended = played(tmp_path, "qkt", {**SHORT, "threshold": 0.0, "frozen": 1.0})
    for state in ended.states:
        assert digest(part(state, "model/parameters/head.")) == digest(part(state, "before/parameters/head."))
        assert digest(part(state, "model/parameters/extractor.")) != digest(part(state, "before/parameters/extractor."))


# Between architectures, and on the wire


def test_peers_may_differ_in_architecture(tmp_path: Path) -> None:
    ended = played(tmp_path, "qkt", {**SHORT, "threshold": 0.0}, **MIXED)
    names = [sorted(part(state, "model/parameters/")) for state in ended.states]
    assert names[0] == names[1] != names[2] == names[3]
    assert all(before != after for before, after in zip(ended.models("before/"), ended.models(), strict=True))


@pytest.mark.parametrize("clients", [4, 6])
def test_relayed_bytes_are_counted_both_ways(tmp_path: Path, clients: int) -> None:
    """Up: every model once. Down: the start for each, and every model once for each of the others.

    The mlp has (64 x 200 + 200 + 200 x 200 + 200 + 200 x 10 + 10) x 4 bytes; a tensor's entry in a header takes less
    than 200 bytes.
    """
    model = 4 * (64 * 200 + 200 + 200 * 200 + 200 + 200 * 10 + 10)
    record = played(tmp_path, "qkt", SHORT, clients=clients).run.journal[0]
    header = 200 * 10
    assert clients * model < record.bytes.up < clients * (model + 2 * header)
    down = clients + clients * (clients - 1)
    assert down * model < record.bytes.down < down * (model + header)


def test_what_leaves_is_declared_for_peers() -> None:
    for name in ("qkt", "naive-kd"):
        leaves = egress_manifest(planned(name, SHORT))["leaves"]
        assert {line["to"] for line in leaves if line["kind"] == "parameters"} == {"peers"}
        assert {line["kind"] for line in leaves if line["exchange"] == "transfer"} == {"metrics"}


def test_a_rehearsal_says_what_a_first_round_would_send() -> None:
    leaves = egress_manifest(planned("qkt", SHORT), rehearse=True)["leaves"]
    assert sum(line["bytes"] for line in leaves if line["exchange"] == "train") > 200_000


def test_a_client_without_a_model_abstains_from_a_transfer() -> None:
    table = Table(planned("qkt", SHORT))
    _, transfer = table.plan.method.exchanges(table.server, 0)
    request = table.request(transfer, 0)
    assert request is not None
    lost = answer(table.plan.clients, transfer, table.plan.profiles[0], request, {}, table.context(transfer))
    assert isinstance(lost, Failure)
    assert lost.reason == "abstained"


def test_a_refused_offer_teaches_nobody(tmp_path: Path, tampered: Any) -> None:
    """Client 1's model never arrives: the others learn as if there were three of them, and it learns nothing."""

    def spoilt(reply: Any, turn: Any) -> dict[str, Any] | None:
        if reply.profile.id != 1 or turn.exchange != "train":
            return None
        return {name: t * float("nan") if t.is_floating_point() else t for name, t in reply.message.items()}

    plan = planned("naive-kd", SHORT)
    folder = execute(plan, tampered(InProcess(), spoilt), tmp_path / "spoilt")
    ended, whole = left(fedstill.Run(folder.path)), played(tmp_path, "naive-kd", SHORT)
    assert ended.run.journal[0].accepted == (0, 2, 3)
    assert ended.states[1] == {}
    assert ended.models("before/")[0] == whole.models("before/")[0]
    assert ended.models()[0] != whole.models()[0]


@pytest.mark.parametrize(
    ("method", "changes", "sentence"),
    [
        ("qkt", {"queries": {"by_hand": {9: [0]}}}, "a query is for client 9, and clients are 0 to 3"),
        ("qkt", {"queries": {"by_hand": {0: [10]}}}, "client 0 asks for class 10, and classes are 0 to 9"),
        ("qkt", {"data": "head-parts", "model": None}, "classes can be asked for where each sample has one"),
    ],
    ids=["client", "class", "points"],
)
def test_what_cannot_be_asked_is_refused(method: str, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        planned(method, SHORT, **changes)


@pytest.mark.parametrize(
    "settings",
    [{"transfer_epochs": 0}, {"alpha": -1}, {"temperature": 0}, {"threshold": 2}, {"noise": 0}, {"frozen": 1.5}],
    ids=lambda settings: next(iter(settings)),
)
def test_bad_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(settings))):
        planned("qkt", settings)


def test_settings_are_described() -> None:
    for settings in (QKTSettings, NaiveSettings):
        assert all(field.description for field in settings.model_fields.values())
