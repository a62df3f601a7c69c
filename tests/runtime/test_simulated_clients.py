"""Thousands of clients: what is held grows with those who take part."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from fedstill.core.dataset import ArrayDataset
from fedstill.core.errors import InputError
from fedstill.core.protocols import Client, Engine, Profile
from fedstill.data.bundle import Bundle, Source, datasets
from fedstill.methods.fedavg import FedAvg
from fedstill.runtime.client_store import ClientStore
from fedstill.runtime.run import execute
from fedstill.runtime.simulated_clients import SimulatedClients, SimulatedProfiles


@pytest.fixture(scope="module", autouse=True)
def crowd() -> None:
    """30,000 samples of two classes, three for each of 10,000 clients."""

    def load(source: Source) -> Bundle:
        """Noise that is brighter or darker."""
        inputs = torch.randn(30_000, 1, 8, 8, generator=torch.Generator().manual_seed(1))
        labels = (inputs.mean(dim=(1, 2, 3)) > 0).long()
        test = ArrayDataset(inputs=inputs[:200], labels=labels[:200])
        return Bundle("crowd", ArrayDataset(inputs=inputs, labels=labels), test, ("low", "high"), "image", (1, 8, 8))

    if "crowd" not in datasets:
        datasets.register("crowd")(load)


def crowd_plan(tiny_plan: Any, clients: int, fraction: float, **changes: Any) -> Any:
    participation = {"name": "random", "fraction": fraction}
    return tiny_plan(data="crowd", model="mlp", clients=clients, rounds=2, participation=participation, **changes)


def test_only_participants_are_made_and_read(
    tiny_plan: Any, engines: dict[str, Engine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 10,000 clients, 50 take part: 50 are made, one alive at a time, and nobody else's state is touched.

    (Resident memory against a population of 100 is measured in `benchmarks`.)
    """
    alive: weakref.WeakSet[Client] = weakref.WeakSet()
    made, most, read = [], [0], []
    make, load = SimulatedClients.__call__, ClientStore.load

    def counted_make(self: Any, *args: Any) -> Client:
        client = make(self, *args)
        alive.add(client)
        made.append(client.profile.id)
        most[0] = max(most[0], len(alive))
        return client

    def counted_load(self: Any, client: int) -> Any:
        read.append(client)
        return load(self, client)

    monkeypatch.setattr(SimulatedClients, "__call__", counted_make)
    monkeypatch.setattr(ClientStore, "load", counted_load)
    monkeypatch.setattr(Client, "__hash__", object.__hash__)
    run = execute(crowd_plan(tiny_plan, 10_000, 0.005), engines["in-process"], tmp_path)
    asked = [client for record in run.journal() for client in record.sampled]
    assert len(asked) == 100
    assert made == asked
    assert read == asked
    assert most[0] <= 2, "the next client is made while the last one is let go"


def test_no_more_requests_exist_than_are_needed(
    tiny_plan: Any, engines: dict[str, Engine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs are pulled one by one: a request is made only when a client is ready for it."""
    alive, most = [0], [0]
    request, reply = FedAvg.request, FedAvg.reply

    def counted_request(self: Any, *args: Any) -> Any:
        alive[0] += 1
        most[0] = max(most[0], alive[0])
        return request(self, *args)

    def counted_reply(self: Any, *args: Any) -> Any:
        alive[0] -= 1
        return reply(self, *args)

    monkeypatch.setattr(FedAvg, "request", counted_request)
    monkeypatch.setattr(FedAvg, "reply", counted_reply)
    execute(crowd_plan(tiny_plan, 1_000, 0.02), engines["in-process"], tmp_path)
    assert most[0] == 1


def test_state_of_ten_thousand_clients_lies_on_disk(tiny_plan: Any, engines: dict[str, Engine], tmp_path: Path) -> None:
    plan = crowd_plan(tiny_plan, 10_000, 0.002, method="local-only", evaluate_every=2)
    run = execute(plan, engines["in-process"], tmp_path)
    heard = {client for record in run.journal() for client in record.accepted}
    files = list((run.path / "clients").iterdir())
    assert len(heard) == len({path.name.split(".")[0] for path in files}) <= 40
    result = run.result()
    assert result is not None
    assert result["personal"]["clients"] == len(heard)


def test_a_client_with_one_sample_abstains(tiny_plan: Any, engines: dict[str, Engine], tmp_path: Path) -> None:
    plan = crowd_plan(tiny_plan, 20_000, 0.001)
    run = execute(plan, engines["in-process"], tmp_path)
    lost = [one for record in run.journal() for one in record.failures]
    alone = {client for client, size in enumerate(plan.clients.shards.sizes().tolist()) if size == 1}
    asked = {client for record in run.journal() for client in record.sampled}
    assert {one.client for one in lost} == alone & asked
    assert alone & asked, "nobody had one sample"
    assert {one.reason for one in lost} == {"abstained"}


def test_more_clients_than_samples_are_refused(tiny_plan: Any) -> None:
    with pytest.raises(InputError, match="30,001 clients cannot share 30,000 samples"):
        crowd_plan(tiny_plan, 30_001, 0.01)


def test_profiles_are_made_when_they_are_asked_for() -> None:
    profiles = SimulatedProfiles(torch.tensor([3, 0, 5]), ("mlp", "mlp", "cnn"))
    assert list(profiles) == [Profile(0, 3, "mlp"), Profile(1, 0, "mlp"), Profile(2, 5, "cnn")]
    assert profiles[-1] == profiles[2] == list(profiles)[2]
    assert profiles[1:] == list(profiles)[1:]
    assert {type(profiles[0].samples), type(next(iter(profiles)).samples)} == {int}
    with pytest.raises(IndexError):
        profiles[3]
