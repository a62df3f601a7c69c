"""`fedstill doctor` as a user meets it: lines to act on, one JSON object, and exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fedstill.cli import diagnosis
from fedstill.cli.doctor import Finding

Call = Callable[..., tuple[int, str, str]]
WELL = Finding("versions", "ok", "all is [well]")
ODD = Finding("threads", "look", "many threads", "set fewer")
BROKEN = Finding("disk", "problem", "no room", "free some")


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def tell(*findings: Finding) -> None:
        monkeypatch.setattr(diagnosis, "check_up", lambda out, data_root: list(findings))

    return tell


def test_nothing_is_broken(call: Call, found: Callable[..., None]) -> None:
    found(WELL, ODD)
    code, out, _ = call("doctor")
    assert code == 0
    assert "ok      versions: all is [well]\n" in out  # brackets are no markup
    assert "look    threads: many threads\n        → set fewer\n" in out
    assert out.endswith("nothing is broken, 1 worth a look\n")


def test_something_is_broken(call: Call, found: Callable[..., None]) -> None:
    found(WELL, BROKEN)
    code, out, _ = call("doctor")
    assert code == 1
    assert out.endswith("one problem\n")
    code, out, _ = call("doctor", "--json")
    assert code == 1
    told = json.loads(out)
    assert told["ok"] is False
    assert told["findings"][1] == {"topic": "disk", "state": "problem", "says": "no room", "advice": "free some"}


def test_the_real_one_says_where_runs_and_data_are(call: Call, tmp_path: Path) -> None:
    code, out, _ = call("doctor", "--json", "--out", "here", "--data-root", str(tmp_path / "nowhere"))
    assert code == 1
    said = [one["says"] for one in json.loads(out)["findings"]]
    assert any(line.startswith("runs in here: ") for line in said)
    assert f"--data-root names {tmp_path / 'nowhere'}, which is no folder" in said
    assert not (tmp_path / "here").exists()
