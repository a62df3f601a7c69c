"""What a site keeps of a transfer: models, their description, and the outcome of its query, worked out by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from fedstill.core.errors import RunError
from fedstill.core.message import Message, part
from fedstill.core.protocols import Client
from fedstill.queries.checkpoint_files import peer_facts, peer_files
from fedstill.queries.peers import BEFORE, PEERS, RECALL, PeerMethod, Transfer

from .asked import Table, planned

SETTINGS: dict[str, Any] = {"transfer_epochs": 1, "head_epochs": 1, "threshold": 0.0, "report_recall": True}


@pytest.fixture(scope="module")
def table() -> tuple[Table, Message]:
    """Four clients after a transfer, and what client 0 was sent for it."""
    made = Table(planned("qkt", SETTINGS, evaluation="on-site"))
    offer, transfer = made.plan.method.exchanges(made.server, 0)
    made.dispatch(offer)
    request = made.request(transfer, 0)
    assert request is not None
    made.dispatch(transfer)
    return made, request


def asker(table: Table, **changes: Any) -> tuple[Client, Transfer]:
    _, transfer = table.plan.method.exchanges(table.server, 0)
    assert isinstance(transfer, Transfer)
    client = table.plan.clients(table.plan.profiles[0], table.states[0], table.context(transfer))
    return replace(client, **changes), transfer


def test_offered_models_are_kept_as_files_that_can_be_queried(table: tuple[Table, Message], tmp_path: Path) -> None:
    made, request = table
    client, transfer = asker(made)
    lines = transfer.keep_on_site(client, request, tmp_path, "0123")
    place = tmp_path / "offers" / "0123"
    files = peer_files(place / "peers")
    assert [file.stem for file in files] == ["peer-1", "peer-2", "peer-3"]
    for number, file in enumerate(files, start=1):
        stored, before = load_file(file), part(made.states[number], BEFORE)
        assert stored.keys() == before.keys()
        assert all(torch.equal(stored[name], tensor) for name, tensor in before.items())
    facts = peer_facts(place / "peers", files)
    for number in (1, 2, 3):
        told = request[f"{PEERS}{number}/{RECALL}"]
        assert facts[f"peer-{number}"].model == "mlp"
        assert facts[f"peer-{number}"].recall == {str(at): float(one) for at, one in enumerate(told) if one >= 0}
    assert yaml.safe_load((place / "own.yaml").read_text()) == {"model": "mlp"}
    own = load_file(place / "own.safetensors")
    assert all(torch.equal(own[name], tensor) for name, tensor in part(made.states[0], BEFORE).items())
    assert lines[-1] == f"the offered models are in {place}"
    assert lines[1].count("teaches") == 3


def test_the_record_has_the_query_and_the_change(table: tuple[Table, Message], tmp_path: Path) -> None:
    made, request = table
    client, transfer = asker(made)
    transfer.keep_on_site(client, request, tmp_path, "0123")
    first = (tmp_path / "queries" / "0123.json").read_bytes()
    record = json.loads(first)
    (wanted,) = record["classes"]
    assert bool(made.states[0]["query"][wanted])
    assert record["metrics"]["gain"] == pytest.approx(record["after"][wanted] - record["before"][wanted])
    transfer.keep_on_site(client, request, tmp_path, "0123")  # a repeated request leaves the same bytes
    assert (tmp_path / "queries" / "0123.json").read_bytes() == first


def test_nothing_is_claimed_without_held_out_samples_or_a_query(table: tuple[Table, Message], tmp_path: Path) -> None:
    made, request = table
    client, transfer = asker(made, test=None)
    lines = transfer.keep_on_site(client, request, tmp_path, "a")
    record = json.loads((tmp_path / "queries" / "a.json").read_text())
    assert (record["before"], record["after"], record["metrics"]) == (None, None, None)
    assert not any("recall of" in line for line in lines)
    (wanted,) = record["unmeasured"]
    assert f"this site has no held-out samples of {wanted}: what it gained of it is not known, and counts as 0" in lines
    nothing = {**made.states[0], "query": torch.zeros(10, dtype=torch.bool)}
    client, transfer = asker(made, state=nothing)
    assert transfer.keep_on_site(client, request, tmp_path, "b") == [f"3 offered models are in {tmp_path}/offers/b"]
    assert not (tmp_path / "queries" / "b.json").exists()


def test_a_recall_that_is_none_is_not_shown(table: tuple[Table, Message], tmp_path: Path) -> None:
    """A server may pass on anything: numbers outside 0 to 1 and tensors of another length are left out."""
    made, request = table
    client, transfer = asker(made)
    wrong = {**request, f"{PEERS}1/{RECALL}": torch.full((10,), 7.0), f"{PEERS}2/{RECALL}": torch.ones(3)}
    transfer.keep_on_site(client, Message(wrong), tmp_path, "a")
    facts = yaml.safe_load((tmp_path / "offers" / "a" / "peers" / "peers.yaml").read_text())
    assert facts["peer-1"]["recall"] == facts["peer-2"]["recall"] == {}
    assert facts["peer-3"]["recall"]


def test_a_folder_that_cannot_be_written(table: tuple[Table, Message], tmp_path: Path) -> None:
    made, request = table
    client, transfer = asker(made)
    (tmp_path / "offers").write_text("a file in its place")
    with pytest.raises(RunError):
        transfer.keep_on_site(client, request, tmp_path, "a")


def test_the_reported_recall_is_that_of_the_offered_model(table: tuple[Table, Message]) -> None:
    """Counted again, sample by sample, on the client's own test rows; -1 where it has none of a class."""
    made, request = table
    method = made.plan.method
    assert isinstance(method, PeerMethod)
    held = made.plan.clients.test
    assert held is not None
    data, rows = held[0], held[1].rows(1)
    model = method.task.build("mlp", part(made.states[1], BEFORE)).eval()
    batch = data.batch(rows)
    said = model(batch["inputs"])[0].argmax(dim=1)
    for number, told in enumerate(request[f"{PEERS}1/{RECALL}"].tolist()):
        own = batch["labels"] == number
        assert told == (pytest.approx(float((said[own] == number).double().mean())) if own.any() else -1)
