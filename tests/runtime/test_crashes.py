"""kill -9 at any instant, then the same command again: the result is that of an uninterrupted run."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ..warm import Warm

CHILD = Path(__file__).with_name("killable.py")

# Where and at which occurrence: spread over training, merging, checkpointing and idle.
KILLS = [
    ("training", 9),
    ("writing the checkpoint", 1),
    ("replacing files", 9),
    ("merging", 2),
    ("idle", 2),
    ("right after replacing files", 4),
    ("training", 2),
    ("replacing files", 2),
    ("merging", 1),
    ("right after replacing files", 1),
    ("writing the checkpoint", 2),
    ("idle", 1),
    ("training", 5),
    ("right after replacing files", 2),
    ("replacing files", 1),
    ("writing the checkpoint", 1),
    ("merging", 1),
    ("right after replacing files", 3),
    ("replacing files", 3),
    ("training", 1),
]


Child = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def child(warm: Warm, tmp_path: Path) -> Child:
    """The script in a process of its own, which nothing but its killing ends."""

    def run(*words: Any) -> subprocess.CompletedProcess[str]:
        begin = f"import runpy, sys; sys.argv = {[str(CHILD), *map(str, words)]!r}"
        return warm.python(f"{begin}; runpy.run_path(sys.argv[0], run_name='__main__')", tmp_path)

    return run


def contents(out: Path) -> dict[str, bytes]:
    left_out = {"timing.json", ".lock", "checkpoint-previous.safetensors"}
    files = [path for path in out.rglob("*") if path.is_file() and path.name not in left_out]
    return {path.name: path.read_bytes() for path in files}


def survive(child: Child, method: str, kills: list[tuple[str, int]], tmp_path: Path) -> list[str]:
    """Kill a run again and again, let it finish, compare; returns where the kills landed."""
    whole = child(tmp_path / "whole", method)
    assert whole.returncode == 0, whole.stderr
    landed = []
    for place, count in kills:
        killed = child(tmp_path / "killed", method, place, count)
        if killed.returncode == -signal.SIGKILL:
            landed.append(killed.stdout.strip())
        else:
            assert killed.returncode == 0, killed.stderr
    finished = child(tmp_path / "killed", method)
    assert finished.stdout == whole.stdout, finished.stderr
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")
    print("\n".join(landed))
    return landed


def test_three_kills(child: Child, tmp_path: Path) -> None:
    assert len(survive(child, "local-only", KILLS[:3], tmp_path)) == 3


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "local-only", "fedgkt"])
def test_twenty_kills(method: str, child: Child, tmp_path: Path) -> None:
    landed = []
    for number in range(0, len(KILLS), 4):  # few at a time: a run of five rounds ends before it was killed often
        landed += survive(child, method, KILLS[number : number + 4], tmp_path / str(number))
    assert len(landed) >= 18
    for place in ("training", "merging", "writing the checkpoint", "replacing files", "idle"):
        assert any(place in line for line in landed), f"no kill landed in {place}"


@pytest.mark.slow
def test_crashes_by_the_clock_through_the_command_line(tmp_path: Path) -> None:
    """The command a user types, killed after random times, until it has survived long enough to finish."""
    arguments = ["run", "fedavg", "--model", "cnn-bn", "--rounds", "8", "--set", "dropout=0.2", "--json"]
    command = [sys.executable, "-m", "fedstill", *arguments]
    whole = subprocess.run([*command, "--out", str(tmp_path / "whole")], capture_output=True, text=True, check=True)
    clock = random.Random(3)
    kills = 0
    for _ in range(20):
        process = subprocess.Popen(
            [*command, "--out", str(tmp_path / "killed")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        time.sleep(clock.uniform(2.0, 6.0))
        process.kill()
        kills += process.wait() == -signal.SIGKILL
    finished = subprocess.run([*command, "--out", str(tmp_path / "killed")], capture_output=True, text=True, check=True)
    assert kills >= 3
    assert finished.stdout.split('"sha256"')[1].split(",")[0] == whole.stdout.split('"sha256"')[1].split(",")[0]
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")
