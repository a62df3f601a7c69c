"""What all methods between peers, and those that they are compared with, have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedstill.queries.outcomes import answered
from fedstill.queries.query import averaged

from .asked import SHORT, played

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
