"""The state of runs, as their folders tell it."""

from __future__ import annotations

import json
from pathlib import Path

import fedstill
from fedstill.runtime.run_folder import RunFolder
from fedstill.runtime.run_state import run_state


def test_each_state(tmp_path: Path) -> None:
    path = fedstill.run("fedavg", model="mlp", clients=2, rounds=1, data="digits[:10%]", out=tmp_path).path
    assert run_state(path) == "finished"
    (path / "result.json").unlink()
    assert run_state(path) == "unfinished"
    lock = RunFolder(path).lock()
    assert run_state(path) == "being worked on"
    lock.release()
    assert run_state(path) == "unfinished"
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "format": 99}))
    assert run_state(path) == "cannot be read"
