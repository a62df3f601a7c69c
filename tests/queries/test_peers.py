"""What all methods between peers, and those that they are compared with, have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fedstill.core.errors import InputError
from fedstill.core.message import digest, part, under
from fedstill.queries.outcomes import answered
from fedstill.queries.peers import ARCHITECTURE, PROGRAM, SAMPLES, built
from fedstill.queries.query import averaged

from .asked import SHORT, planned, played

METHODS: dict[str, dict[str, Any]] = {
    "qkt": SHORT,
    "naive-kd": SHORT,
    "qkt-light": SHORT,
    "ensemble": {},
    "clue": {},
    "pfnm": {"hidden": 12},
    "fine-tuned": {},
    "fedavg": {},
}
OWN = [name for name in METHODS if name not in ("fine-tuned", "fedavg")]


@pytest.mark.parametrize("name", METHODS)
def test_queries_are_the_same_whatever_the_method(tmp_path: Path, name: str) -> None:
    """Asked and counted alike, so that methods can be compared; before is local-only's, told or remembered."""
    local = played(tmp_path, "local-only").run.answers()
    answers = played(tmp_path, name, METHODS[name]).run.answers()
    assert set(answers) == {"0", "1", "2", "3"}
    for client, one in answers.items():
        assert one["query"] == local[client]["query"]
        assert one["counts"] == local[client]["counts"]
        assert one["before"] == (local[client]["recalls"] if name in OWN else None)
    means = averaged(answered(answers, local))
    assert means["clients"] == 4
    assert means["forgetting"] <= 0
    assert -1 <= means["gain"] <= 1


@pytest.mark.parametrize("name", [name for name in METHODS if name != "fedavg"])
def test_clients_models_can_be_scored_where_they_are(tmp_path: Path, name: str) -> None:
    """On site, each client's model is put together there, of what it keeps and what the server says."""
    run = played(tmp_path, name, METHODS[name], evaluation="on-site").run
    record = run.journal[-1]
    assert record.evaluation.sites.accepted == 4
    assert record.evaluation.personal.clients == 4
    assert 0 <= record.evaluation.personal.mean <= 1


def test_a_program_that_nobody_agreed_to_is_not_run() -> None:
    """A server that passes one on to a site whose experiment has models as weights."""
    task = planned("qkt").task
    facts = {ARCHITECTURE: torch.tensor(0), SAMPLES: torch.tensor(5)}
    offered = under("1/", {PROGRAM: torch.zeros(8, dtype=torch.uint8), **facts})
    with pytest.raises(InputError, match="peer 1 offers a program"):
        built(task, offered)
    assert built(task, offered, programs=True) == {}  # which is no program, and so no teacher


def test_a_peer_whose_weights_are_not_finite_is_left_out() -> None:
    plan = planned("qkt")
    state = part(plan.method.start(plan.streams), "start/mlp/")
    sick = {name: torch.full_like(tensor, float("nan")) for name, tensor in state.items()}
    facts = {ARCHITECTURE: torch.tensor(0), SAMPLES: torch.tensor(5)}
    offered = {**under("1/", {**sick, **facts}), **under("2/", {**state, **facts})}
    assert list(built(plan.task, offered)) == [2]


def test_reporting_recall_changes_no_model(tmp_path: Path) -> None:
    quiet = played(tmp_path / "quiet", "qkt", SHORT)
    loud = played(tmp_path / "loud", "qkt", {**SHORT, "report_recall": True})
    assert loud.models() == quiet.models()
    assert digest(loud.server) == digest(quiet.server)
    assert loud.run.path.name != quiet.run.path.name
