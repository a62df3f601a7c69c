"""kill -9 at either end: the round goes on without a site, the site comes back, a server goes on where it was."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedstill.deploy.server_status import read_status
from fedstill.runtime.run_folder import RunFolder

pytestmark = pytest.mark.slow
LONG: dict[str, Any] = {"method": "scaffold", "rounds": 8, "training": {"epochs": 4, "batch": 16}}


def until(true: Callable[[], bool], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)


def test_a_site_that_is_killed_in_mid_round_and_comes_back_in_time_costs_nothing(stage: Any) -> None:
    made = stage(2)
    for site in range(2):
        made.start_site(site)
    thread = made.serve_in_background(**{**LONG, "rounds": 6})
    until(lambda: len(made.notes.records) >= 2)
    until(lambda: made.log(1).count("evaluate: sent") >= 2)
    time.sleep(0.3)  # it has been asked for the next round by now, and is training
    made.company.kill("site-1")
    made.start_site(1)
    thread.join(timeout=240)
    assert made.error is None
    assert made.done is not None
    assert "client 1: its site" in made.notes.text, "it was killed between two rounds"
    assert made.done.journal() == made.alone(**{**LONG, "rounds": 6}).journal()


def test_a_server_that_is_killed_goes_on_and_ends_with_the_same_bits(stage: Any) -> None:
    made = stage(2)
    settings = ("training.epochs=4", "training.batch=16", "data=not-here")
    command = ["server", str(made.folder), "scaffold", "--model", "cnn-bn", "--rounds", "8", "--seed", "5"]
    command += [text for setting in settings for text in ("--set", setting)]
    command += ["--out", str(made.path / "runs"), "--host", "127.0.0.1", "--port", str(made.port)]
    for site in range(2):
        made.start_site(site)
    rounds = [1, 4]
    for reached in rounds:
        made.company.start("server", command)
        until(lambda reached=reached: ((read_status(made.folder / "server") or {}).get("round", 0)) > reached)
        made.company.kill("server")
    made.company.start("server", command)
    made.company.wait("server")
    (path,) = (made.path / "runs").iterdir()
    deployed, alone = RunFolder(path), made.alone(**LONG)
    assert (
        json.loads((path / "result.json").read_text())["sha256"]
        == json.loads((alone.path / "result.json").read_text())["sha256"]
    )
    assert deployed.journal() == alone.journal()


# In a round of two sites: a survey of both, training and recalibration by one, and an evaluation by both.
SEVERAL: dict[str, Any] = {
    "method": {"name": "scaffold", "buffers": "recalibrate"},
    "participation": {"name": "power-of-choice", "number": 1, "losses": "ask"},
}
EXCHANGES = {"losses": 4, "train": 2, "recalibrate": 2, "evaluate": 4}  # in two rounds, each asked for once


def test_a_server_that_is_killed_between_two_exchanges_goes_on_with_the_same_clients(stage: Any) -> None:
    """Whatever was answered is not asked again, and the run ends like one that nobody disturbed."""
    made = stage(2)
    for site in range(2):
        made.start_site(site)
    server = [sys.executable, str(Path(__file__).with_name("killable_server.py")), str(made.path), str(made.port)]

    def serve(results: int) -> subprocess.CompletedProcess[str]:
        command = [*server, json.dumps(SEVERAL), str(results)]
        return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)

    killed = serve(3)  # between training and recalibration
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    (path,) = (made.path / "runs").iterdir()
    recorded = sorted(file.name for file in (path / "exchanges").iterdir())
    assert [name[:4] for name in recorded] == ["0.0.", "0.0.", "0.1."]
    ended = serve(0)
    assert ended.returncode == 0, ended.stderr
    alone = made.alone(**SEVERAL)
    assert json.loads((path / "result.json").read_text())["sha256"] == alone.result().sha256
    assert (path / "journal.jsonl").read_bytes() == (alone.path / "journal.jsonl").read_bytes()
    assert not (path / "exchanges").exists()
    answers = {name: made.log(0).count(f"{name}: sent") + made.log(1).count(f"{name}: sent") for name in EXCHANGES}
    assert answers == EXCHANGES
