"""`fedstill verify`: what it prints, and how it ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

Call = Callable[..., tuple[int, str, str]]
WORDS = ("run", "fedavg", "--model", "mlp", "--clients", "2", "--rounds", "1", "--set", "batch=256")


@pytest.fixture
def run(call: Call) -> Path:
    return Path(json.loads(call(*WORDS, "--json")[1])["run"])


def edit(run: Path) -> None:
    result = json.loads((run / "result.json").read_text())
    result["accuracy"]["last"] = 0.99
    (run / "result.json").write_text(json.dumps(result))


def test_it_says_what_fits_and_what_does_not(call: Call, run: Path) -> None:
    code, said, _ = call("verify", str(run), "--rerun", "1")
    assert code == 0
    assert f"{run.name}: fits together" in said
    assert "was repeated, to the same bits" in said
    edit(run)
    code, said, _ = call("verify", "runs")
    assert code == 1
    assert f"{run.name}: contradicts itself" in said
    assert "result.json: accuracy.last: it is not what the run wrote (it says 0.99 now)" in said
    assert "1 checked, 1 with contradictions" in said
    code, said, _ = call("verify", str(run), "--json")
    assert code == 1
    told = json.loads(said)
    assert told["ok"] is False
    assert told["sources"][0]["contradictions"][0]["field"] == "accuracy.last"


def test_nothing_to_verify_is_an_input_error(call: Call) -> None:
    code, _, errors = call("verify", "nowhere")
    assert code == 2
    assert "there is nothing at nowhere" in errors


def test_an_edited_run_is_not_taken_for_finished(call: Call, run: Path) -> None:
    edit(run)
    code, _, errors = call(*WORDS)
    assert code == 2
    assert "result.json was edited: accuracy.last" in " ".join(errors.split())
