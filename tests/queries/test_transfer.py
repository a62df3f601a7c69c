"""One client of a finished run asks the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import fedstill
from fedstill.core.errors import InputError
from fedstill.core.kinds import state_of
from fedstill.queries.query_function import query
from fedstill.queries.transfer import Asked, keep
from fedstill.runtime.result import Run

SETTING: dict[str, Any] = {
    "data": "digits",
    "model": "mlp",
    "clients": 4,
    "partition": {"name": "pathological", "classes_per_client": 3},
    "rounds": 1,
    "training": {"epochs": 6, "batch": 32, "optimiser": "adam", "rate": 0.003},
    "seed": 3,
}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return fedstill.run({**SETTING, "method": "local-only"}, out=tmp_path_factory.mktemp("alone"))


@pytest.fixture(scope="module")
def asked(alone: Run) -> Asked:
    return query(alone, 0, lacking(alone), transfer_epochs=3)


def lacking(run: Run) -> int:
    """A class that client 0 has no sample of."""
    counts = query(run, 0, 0, threshold=1.0).fate.counts
    return int(torch.nonzero(counts == 0)[0])


def test_the_transfer_is_that_of_a_run_of_qkt_with_the_same_query(alone: Run, asked: Asked, tmp_path: Path) -> None:
    """Watched epoch by epoch or in one go, in a run of its own or in one of all clients: the same bits."""
    (number,) = asked.fate.query
    queries = {"by_hand": {0: [number]}}
    whole = fedstill.run(
        {**SETTING, "method": {"name": "qkt", "transfer_epochs": 3}, "queries": queries}, out=tmp_path / "whole"
    )
    own = state_of(whole.model(client=0))
    assert own.keys() == state_of(asked.model).keys()
    assert all(torch.equal(tensor, own[name]) for name, tensor in state_of(asked.model).items())
    assert whole.answers()["0"]["recalls"] == asked.fate.after.tolist()
    assert whole.answers()["0"]["before"] == asked.fate.before.tolist()


def test_only_peers_that_have_the_class_teach_and_never_the_client_itself(asked: Asked) -> None:
    (number,) = asked.fate.query
    assert asked.teachers
    assert 0 not in asked.teachers
    known = {client for client in range(4) if asked.probe.known[client, number]}
    assert set(asked.teachers) == known - {0}
    assert not asked.unmatched


def test_every_epoch_of_both_phases_is_watched(asked: Asked) -> None:
    assert [(phase, epoch) for phase, epoch, _ in asked.epochs] == [
        ("before", 0),
        *(("features", epoch) for epoch in (1, 2, 3)),
        *(("head", epoch) for epoch in (1, 2, 3)),
    ]
    assert asked.epochs[-1][2] == pytest.approx(asked.fate.metrics()["accuracy"])


def test_stages_are_what_a_query_without_the_second_phase_and_naive_distillation_give(alone: Run, asked: Asked) -> None:
    (number,) = asked.fate.query
    compared = query(alone, 0, number, transfer_epochs=3, compare=True)
    assert same(compared.model, asked.model), "a comparison changes nothing"
    assert list(asked.stages) == ["after phase 1"]
    assert list(compared.stages) == ["naive distillation", "after phase 1"]
    first = query(alone, 0, number, transfer_epochs=3, refine=False)
    naive = query(alone, 0, number, transfer_epochs=3, method="naive-kd")
    assert not first.stages
    assert same(compared.stages["after phase 1"], first.model)
    assert same(compared.stages["naive distillation"], naive.model)
    assert not same(first.model, naive.model)
    assert not same(first.model, asked.model)


def same(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    """Whether two models have the same bits."""
    own, others = state_of(one), state_of(other)
    return own.keys() == others.keys() and all(torch.equal(tensor, others[name]) for name, tensor in own.items())


def test_what_is_kept_is_a_run(asked: Asked, tmp_path: Path) -> None:
    run = keep(asked, tmp_path)
    assert run.finished
    assert run.experiment.queries is not None
    assert run.experiment.queries.by_hand == {0: asked.fate.query}
    kept = state_of(run.model())
    assert all(torch.equal(tensor, kept[name]) for name, tensor in state_of(asked.model).items())
    assert keep(asked, tmp_path).path == run.path


def test_a_class_that_nobody_knows_changes_nothing(alone: Run) -> None:
    asked = query(alone, 0, [0], threshold=1.0)
    assert not asked.answered
    assert asked.fate.before.tolist() == asked.fate.after.tolist()


@pytest.mark.parametrize(
    ("client", "wanted", "settings", "words"),
    [
        (9, [1], {}, "clients are 0 to 3"),
        (0, ["eleven"], {}, "there is no class 'eleven'"),
        (0, [10], {}, "a number from 0 to 9"),
        (0, [1], {"lambda": 2}, "unknown setting"),
        (0, [1], {"tune": True}, "shown none: leave it out"),
        (0, [1], {"method": "fedavg"}, "fedavg does not answer one client's query"),
        (0, [1], {"method": "naive-kd", "compare": True}, "naive-kd is what a query is compared with"),
        (0, [1], {"method": "qkt-light", "first_phase": "volunteer"}, "set first_phase to student"),
    ],
)
def test_bad_input_is_a_sentence(
    alone: Run, client: int, wanted: list[Any], settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        query(alone, client, wanted, **settings)


def test_clients_without_models_of_their_own_cannot_ask(tmp_path: Path) -> None:
    shared = fedstill.run({**SETTING, "method": "fedavg"}, out=tmp_path)
    with pytest.raises(InputError, match="no models of their own"):
        query(shared, 0, [1])


def test_whether_clients_have_models_is_asked_of_the_method_as_it_was_set(tmp_path: Path) -> None:
    """FedGKT has clients' own models where extractors are private, and only there."""
    split = {**SETTING, "model": "resnet8", "clients": 2, "partition": "iid", "training": {"epochs": 1, "batch": 256}}
    own = fedstill.run({**split, "method": {"name": "fedgkt", "extractors": "private"}}, out=tmp_path)
    asked = query(own, 0, 7, threshold=0, transfer_epochs=1, head_epochs=1)
    assert asked.teachers == (1,)


def test_observers_are_told_every_epoch(alone: Run) -> None:
    told: list[tuple[str, int, float]] = []

    class Observer:
        def epoch(self, phase: str, epochs: int, accuracy: float) -> None:
            told.append((phase, epochs, accuracy))

    short = {"threshold": 0, "transfer_epochs": 2, "head_epochs": 1}
    with pytest.warns(DeprecationWarning, match="use callbacks="):
        asked = query(alone, 0, 7, observers=[Observer()], **short)
    assert told == asked.epochs[1:]
    assert [epochs for _, epochs, _ in told] == [1, 2, 1]
    again: list[tuple[str, int, float]] = []
    ended: list[object] = []
    finish = type("Finish", (), {"on_finish": lambda self, asked: ended.append(asked)})()
    called = query(alone, 0, 7, callbacks=[lambda *epoch: again.append(epoch), finish], **short)
    assert again == told
    assert ended == [called]
