"""A query to offered models: the same computation as in a run, by one asker with its own data."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import fedstill
from fedstill.core.errors import InputError
from fedstill.core.kinds import state_of
from fedstill.core.message import digest
from fedstill.queries.offers import OfferQuery, question_to_offers
from fedstill.queries.transfer import answer, make_question

from .asked import TINY, experiment, planned
from .offered import QUICK, data_file, hand_over, net, taught


@pytest.fixture
def peers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return hand_over(tmp_path)


def question(peers: Path, classes: str | int = "date", **changes: object) -> OfferQuery:
    options = {"model": "small_nets:build", "own": "mine.safetensors", **changes}
    return question_to_offers(peers, classes, "npz:mine.npz", QUICK, **options)  # type: ignore[arg-type]


def test_offered_models_are_asked_as_the_clients_of_a_run_are(tmp_path: Path) -> None:
    """The models of a run's clients as files, and the data of client 0 as arrays: the answer has the run's bits."""
    run = fedstill.run(experiment("local-only"), out=tmp_path)
    settings = {"transfer_epochs": 2, "threshold": 0.0}
    wanted = answer(make_question(run, 0, 7, settings))
    folder = tmp_path / "peers"
    folder.mkdir()
    for client in (1, 2, 3):
        save_file(run.model(client=client).state_dict(), folder / f"{client}.safetensors")
    save_file(run.model(client=0).state_dict(), tmp_path / "own.safetensors")
    plan = planned("local-only")
    train, rows, test = plan.clients.data, plan.clients.shards.rows(0), plan.bundle.test
    parts = [train.batch(rows), test.batch(torch.arange(len(test)))]
    halves = [(part["inputs"], part["labels"]) for part in parts]
    data = fedstill.dataset(tuple(halves), classes=plan.task.classes, part=True)
    same = {"training": TINY["training"], "seed": TINY["seed"]}
    asked = fedstill.query(
        folder, classes=7, data=data, model="mlp", own=tmp_path / "own.safetensors", **settings, **same
    )
    assert digest(state_of(asked.model)) == digest(state_of(wanted.model))
    assert (asked.probe.logs == wanted.probe.logs).all()
    assert asked.fate.metrics() == wanted.fate.metrics()
    assert asked.teachers == wanted.teachers == (1, 2, 3)
    assert asked.traffic == {"up": 0, "down": wanted.traffic["down"]}


def test_a_query_gains_the_class_from_the_peer_that_has_it_and_keeps_a_record(peers: Path, tmp_path: Path) -> None:
    asked = question(peers).answer(tmp_path)
    assert asked.names == ("you", "north", "south")
    assert [asked.name(number) for number in asked.teachers] == ["south"]
    assert asked.fate.before.tolist() == [1.0, 1.0, 0.0, 0.0]  # the file's weights read the file's samples
    assert asked.fate.metrics()["gain"] > 0.2
    assert asked.reported(2, 3) == 0.75
    assert asked.reported(1, 3) is None
    assert not asked.probe.true[1:].any()
    kept = asked.keep(tmp_path / "kept")
    record = kept.result.query  # type: ignore[attr-defined]
    assert [(one.name, one.model) for one in record.offered] == [("north", "build"), ("south", "small_nets:wide")]
    assert record.offered[1].sha256 == digest(state_of(taught((0, 3), width=12)))
    assert record.unmeasured is None
    stored, wanted = load_file(kept.path / "model.safetensors"), asked.model.whole().state_dict()  # type: ignore[operator]
    assert stored.keys() == net().state_dict().keys() == wanted.keys()
    assert all(torch.equal(one, wanted[name]) for name, one in stored.items())
    assert all(torch.equal(one, wanted[name]) for name, one in kept.model(into=net()).state_dict().items())
    again = question(peers).answer(tmp_path).keep(tmp_path / "kept")
    assert (again.path, again.sha256) == (kept.path, kept.sha256)


def test_everything_that_was_asked_is_in_the_identity(peers: Path, tmp_path: Path) -> None:
    first = question(peers)
    changed = dict(taught((1, 2)).state_dict())
    changed["1.bias"] = changed["1.bias"] + 1e-6
    save_file(changed, peers / "north.safetensors")
    second = question(peers)
    assert first.offers.sha256 != second.offers.sha256
    save_file(taught((0, 1), seed=4).state_dict(), tmp_path / "mine.safetensors")
    assert question(peers).offers.sha256 != second.offers.sha256


def test_without_an_own_model_one_is_trained_alone_once_and_reused(peers: Path, tmp_path: Path) -> None:
    settings = {**QUICK, "rounds": 2, "training.epochs": 5}

    def asked() -> fedstill.Asked:
        made = question_to_offers(peers, 3, "npz:mine.npz", settings, model="small_nets:build")
        assert not made.has_own
        return made.answer(tmp_path / "runs")

    nobody = question_to_offers(peers, 3, "npz:mine.npz", {**settings, "threshold": 1.0}, model="small_nets:build")
    assert not nobody.answer(tmp_path / "runs").answered
    assert not (tmp_path / "runs").exists()  # nobody teaches, so nothing is trained
    first = asked()
    (run,) = (tmp_path / "runs").iterdir()
    journal = (run / "journal.jsonl").stat().st_mtime_ns
    assert digest(state_of(first.before)) == digest(state_of(fedstill.Run(run).built(client=0)))
    assert digest(state_of(asked().model)) == digest(state_of(first.model))
    assert (run / "journal.jsonl").stat().st_mtime_ns == journal


def test_a_class_without_held_out_samples_is_said_to_be_unmeasured(peers: Path, tmp_path: Path) -> None:
    data_file(tmp_path / "mine.npz", held_out=(0, 1))
    asked = question(peers).answer(tmp_path)
    assert asked.unmeasured == (3,)
    assert asked.keep(tmp_path / "kept").result.query.unmeasured == (3,)  # type: ignore[attr-defined]


def test_probing_trains_nothing(peers: Path, tmp_path: Path) -> None:
    seen = question(peers).examine()
    assert [seen.name(number) for number in seen.teachers] == ["south"]
    assert seen.model is seen.before
    assert not seen.epochs


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"classes": "oak"}, "there is no class 'oak'"),
        ({"model": "small_nets:absent"}, "cannot be made: module 'small_nets' has no attribute 'absent'"),
        ({"model": "mpl"}, "mpl"),
        ({"model": "mlp"}, "do not fit the model mlp"),
        ({"model": "small_nets:wide"}, "north.safetensors do not fit the model wide"),
        ({"own": "absent.safetensors"}, "there is no file absent.safetensors"),
        ({"head": "1"}, "the layer '1' cannot be the model's head"),
        ({"head": "fc"}, "has no layer 'fc'"),
        ({"method": "fedavg"}, "does not answer one client's query"),
    ],
)
def test_refused_before_any_work(peers: Path, tmp_path: Path, changes: dict[str, str], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        question(peers, **changes)  # type: ignore[arg-type]
    assert not (tmp_path / "runs").exists()
