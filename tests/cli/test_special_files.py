"""Pipes and deeply nested text where a command reads a file: a sentence and exit code 2, and no waiting."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from fedstill.deploy.create import make_deployment

DEEP = "[" * 100_000  # deep enough to end a process whose parser is recursive in C


@pytest.mark.parametrize(
    "words",
    [
        ("show", "run"),
        ("report", "run"),
        ("run", "deep.yaml"),
        ("study", "deep.yaml"),
        ("audit", "deep.json"),
        ("deploy", "status", "d"),
        ("deploy", "site", "d", "--site", "0", "--data", "digits"),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("kind", ["deep", "pipe"])
def test_on_the_command_line(call: Any, words: tuple[str, ...], kind: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    make_deployment(tmp_path / "d", 1)
    (tmp_path / "run").mkdir()
    targets = ("run/config.json", "deep.yaml", "deep.json", "d/server/deployment.yaml", "d/site-0/site.yaml")
    for name in targets:
        (tmp_path / name).unlink(missing_ok=True)
        (tmp_path / name).write_text(DEEP) if kind == "deep" else os.mkfifo(tmp_path / name)
    code, _, err = call(*words)
    assert code == 2
    assert "Traceback" not in err
    assert len(err.strip().splitlines()) <= 3
