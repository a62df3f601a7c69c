"""FedAvg to the bit, and then a model for each client that never leaves it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import fedstill
from fedstill.core.errors import InputError
from fedstill.core.message import digest, part
from fedstill.engines import InProcess
from fedstill.methods.fine_tuned import FineTuned, FineTunedSettings
from fedstill.runtime.run import execute

from ..queries.asked import left, planned, played
from .sites import Site, build, points, weight

CASES: dict[str, dict[str, Any]] = {
    "constant rate": {},
    "falling rate": {"training": {"epochs": 1, "batch": 64, "schedule": "cosine", "keep_optimiser": True}},
    "recalibrated": {"model": "cnn-bn", "settings": {"buffers": "recalibrate"}},
    "some are lost": {"participation": {"name": "random", "number": 3}, "dropout": 0.3, "seed": 3},
}


@pytest.mark.parametrize("case", CASES)
def test_the_shared_model_is_fedavgs_to_the_bit(tmp_path: Path, case: str) -> None:
    """Two rounds and the one more that tunes, against FedAvg's two; also the rate does not know of the third."""
    changes = {**CASES[case]}
    settings = changes.pop("settings", {})
    shared = played(tmp_path, "fedavg", settings, rounds=2, **changes)
    tuned = played(tmp_path, "fine-tuned", settings, rounds=2, **changes)
    assert digest(part(tuned.server, "model/")) == digest(part(shared.server, "model/"))
    assert len(tuned.run.journal) == 3
    for one, other in zip(tuned.run.journal, shared.run.journal, strict=False):
        assert one["bytes"] == other["bytes"]
        assert one["metrics"] == other["metrics"]


def test_tuning_by_hand() -> None:
    """The loss is (w - a)^2 / 2, steps of rate 1/2 on all samples. Shared: 0 -> mean(0.5, 1.5) = 1 after one round.

    Then each client takes two epochs towards its own 1 and 3: 1 stays, and 1 -> 2 -> 2.5.
    """
    method = build("fine-tuned")
    site = Site(method, method.task, [points(1.0, 1.0), points(3.0, 3.0)], rounds=2)
    site.play()
    assert weight(site.server) == 1.0
    assert [weight(state, "personal/parameters/w") for state in site.states] == [1.0, 2.5]


@pytest.mark.parametrize(("epochs", "expected"), [(1, 2.0), (3, 2.75)])
def test_so_many_epochs_as_asked_for(epochs: int, expected: float) -> None:
    method = build("fine-tuned", tuning_epochs=epochs)
    site = Site(method, method.task, [points(1.0, 1.0), points(3.0, 3.0)], rounds=2)
    site.play()
    assert weight(site.states[1], "personal/parameters/w") == expected


def test_the_last_shared_rounds_rate_is_used() -> None:
    """A cosine over two rounds: rates 1/2 and 1/4; one more of either kind would have others, and zero at the end.

    Shared: 0 -> mean(0.5, 1.5) = 1 -> mean(1, 1.5) = 1.25. One epoch at 1/4: 1.25 - 0.0625 and 1.25 + 0.4375.
    """
    method = build("fine-tuned", training={"schedule": "cosine"}, tuning_epochs=1)
    site = Site(method, method.task, [points(1.0, 1.0), points(3.0, 3.0)], rounds=3)
    site.play()
    assert weight(site.server) == pytest.approx(1.25)
    own = [weight(state, "personal/parameters/w") for state in site.states]
    assert own == pytest.approx([1.1875, 1.6875])


def test_nothing_but_metrics_leaves_in_the_last_round(tmp_path: Path) -> None:
    ended = played(tmp_path, "fine-tuned", rounds=1)
    shared, tuning = ended.run.journal
    assert shared.bytes.up > 4 * 200_000
    assert tuning.bytes.up < 4 * 300
    assert tuning.bytes.down == shared.bytes.down
    assert shared.evaluation.personal is None
    assert tuning.evaluation.personal.clients == 4
    assert len({digest(part(ended.server, "model/")), *ended.models("personal/")}) == 5
    assert ended.run.result.personal.own_mean > 0.5


def test_each_round_knows_its_exchanges() -> None:
    method = build("fine-tuned")
    assert isinstance(method, FineTuned)
    assert method.rounds(20) == 21
    server = {**method.start(planned("fine-tuned").streams), "rounds": torch.tensor(3)}
    names = [[exchange.name for exchange in method.exchanges(server, round)] for round in range(3)]
    assert names == [["train"], ["train"], ["tune"]]
    assert [exchange.name for exchange in method.every_exchange()] == ["train", "tune"]
    assert all(line.kind == "metrics" for line in method.every_exchange()[1].egress)


def test_a_skipped_round_does_not_put_tuning_off(tmp_path: Path, tampered: Any) -> None:
    """Nobody is heard in the second of two rounds; the third tunes the first one's model all the same."""

    def spoilt(reply: Any, turn: Any) -> dict[str, Any] | None:
        if turn.round != 1:
            return None
        return {name: t * float("nan") if t.is_floating_point() else t for name, t in reply.message.items()}

    plan = planned("fine-tuned", rounds=2)
    ended = left(fedstill.Run(execute(plan, tampered(InProcess(), spoilt), tmp_path / "spoilt").path))
    assert [record.skipped is None for record in ended.run.journal] == [True, False, True]
    assert ended.run.result.personal.clients == 4
    once = played(tmp_path, "fedavg", rounds=1)
    assert digest(part(ended.server, "model/")) == digest(part(once.server, "model/"))


def test_who_is_not_in_the_last_cohort_has_no_model_of_its_own(tmp_path: Path) -> None:
    ended = played(tmp_path, "fine-tuned", participation={"name": "random", "number": 2}, rounds=1)
    asked = list(ended.run.journal[-1].accepted)
    assert [client for client, state in enumerate(ended.states) if part(state, "personal/")] == asked
    answers = ended.run.answers()
    shared = [answers[str(client)]["recalls"] for client in range(4) if client not in asked]
    assert shared[0] == shared[1]


def test_bad_settings_are_refused() -> None:
    with pytest.raises(InputError, match="tuning_epochs"):
        planned("fine-tuned", {"tuning_epochs": 0})
    with pytest.raises(InputError, match="clients with cnn and mlp have none in common"):
        planned("fine-tuned", model=None, models={"cnn": 2, "mlp": 2})


def test_settings_are_described() -> None:
    assert all(field.description for field in FineTunedSettings.model_fields.values())
