"""Temporary folders: gone when they are left, and after their process was killed."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from fedstill.engines import Processes
from fedstill.engines.scratch import Scratch, sweep

CHILD = """
import os, signal, sys
from pathlib import Path
from fedstill.engines.scratch import Scratch
made = Scratch(Path(sys.argv[1]))
Path(made.name, "data").write_bytes(bytes(100))
if sys.argv[2] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
"""


def child(root: Path, how: str) -> int:
    return subprocess.run([sys.executable, "-c", CHILD, str(root), how], check=False).returncode


def test_it_is_gone_when_it_is_left(tmp_path: Path) -> None:
    made = Scratch(tmp_path)
    assert Path(made.name).is_dir()
    made.cleanup()
    made.cleanup()
    assert list(tmp_path.iterdir()) == []
    assert child(tmp_path, "leaving without a word") == 0
    assert list(tmp_path.iterdir()) == []


def test_that_of_a_killed_process_is_swept_and_one_in_use_is_not(tmp_path: Path) -> None:
    ours = Scratch(tmp_path)
    assert child(tmp_path, "killed") == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 4  # two folders and their locks
    sweep(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {Path(ours.name).name, f"{Path(ours.name).name}.lock"}
    ours.cleanup()


def test_workers_that_are_given_nothing_to_do_still_tidy_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a kill at a run's very end: the same command finds the result whole."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert child(tmp_path, "killed") == -signal.SIGKILL
    with Processes(1):
        assert list(tmp_path.iterdir()) == []
