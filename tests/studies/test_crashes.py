"""A study in two stages that is killed again and again, two workers and all, ends with the files of one that is not."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedstill.studies import Study

CHILD = Path(__file__).parent / "counting.py"
Make = Callable[..., dict[str, Any]]
STUDENTS = {
    "experiment": {"model": "cnn", "rounds": 6, "training": {"batch": 64}},
    "grid": {"objective": ["labels-only", "vanilla", "self", "feature", "dkd", "crd"], "labels": ["use", "no-ce"]},
}


def files(folder: Path) -> dict[str, bytes]:
    """Everything but times, locks and digests of the rest; a student's configuration names its teacher's folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes().replace(str(folder).encode(), b"OUT")
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in ("timing.json", ".lock", "digests.json")
    }


def landed(out: Path) -> str:
    """What a kill has interrupted, as the folder tells: a teacher, students, or nothing that had begun."""
    unfinished = [path.parent.name for path in out.glob("*/config.json") if not (path.parent / "result.json").exists()]
    if not unfinished:
        return "between runs"
    if any(name.startswith("distill") for name in unfinished):
        rounds = {
            len((out / name / "journal.jsonl").read_bytes().splitlines())
            for name in unfinished
            if (out / name / "journal.jsonl").exists()
        }
        return "students at one epoch" if len(rounds) <= 1 else "students at different epochs"
    return "teachers"


def killed(file: str, out: Path, log: Path, kills: int, seed: int) -> list[str]:
    """Start the study, kill it after a while, and again; gives where each kill landed."""
    generator, places = random.Random(seed), []
    while len(places) < kills:
        process = subprocess.Popen(
            [sys.executable, str(CHILD), file, str(out), str(log), "2"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        deadline = time.monotonic() + 120
        before = _size(out)
        # Not before something has happened since the last kill, and then at any moment.
        while _size(out) == before and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(generator.uniform(0, 0.6))
        if process.poll() is not None:
            break  # finished: there is nothing left to kill
        os.kill(process.pid, signal.SIGKILL)
        process.communicate(timeout=60)
        time.sleep(0.3)  # its workers die when they notice
        places.append(landed(out))
    return places


def _size(out: Path) -> int:
    return sum(path.stat().st_size for path in out.glob("*/journal.jsonl")) if out.exists() else 0


@pytest.mark.slow
@pytest.mark.parametrize(("kills", "seeds"), [(2, [7]), (10, [7, 42, 123])], ids=["twice", "ten times"])
def test_killed_again_and_again(
    recipe: Make, written: Callable[..., str], tmp_path: Path, kills: int, seeds: list[int]
) -> None:
    made = recipe({"method": ["fedavg", "scaffold"], "seed": seeds}, rounds=3)
    file = written({**made, "students": STUDENTS})
    out = tmp_path / "runs"
    places = killed(file, out, tmp_path / "log", kills, seed=len(seeds))
    print(f"kills landed: {places}")
    assert len(places) == kills, f"the study was finished before it could be killed so often: {places}"
    results = Study(file).run(out, workers=2)
    assert results.students is not None
    assert not results.students.failures
    shutil.rmtree(out / "failures", ignore_errors=True)
    Study(file).run(tmp_path / "whole")
    interrupted, uninterrupted = files(out), files(tmp_path / "whole")
    assert interrupted.keys() == uninterrupted.keys()
    assert [name for name in interrupted if interrupted[name] != uninterrupted[name]] == []
