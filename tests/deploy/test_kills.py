"""kill -9 at either end: the round goes on without a site, the site comes back, a server goes on where it was."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
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


def test_a_site_that_is_killed_in_mid_round_is_lost_and_comes_back(stage: Any) -> None:
    made = stage(2)
    for site in range(2):
        made.start_site(site)
    thread = made.serve_in_background(**{**LONG, "rounds": 14})
    until(lambda: len(made.notes.records) >= 2)
    until(lambda: made.log(1).count("evaluate: sent") >= 2)
    time.sleep(0.3)  # it has been asked for the next round by now, and is training
    made.company.kill("site-1")
    made.start_site(1)
    thread.join(timeout=240)
    assert made.error is None
    assert made.done is not None
    journal = made.done.journal()
    lost = [record for record in journal if record.failures]
    assert lost, "it was killed between two rounds"
    assert {one.client for record in lost for one in record.failures} == {1}
    known = {"its site fell silent", "its site was restarted", "its site is not connected"}
    assert {one.detail for record in lost for one in record.failures} <= known
    assert all(0 in record.accepted for record in journal)
    assert journal[-1].accepted == (0, 1), "it did not come back"
    assert json.loads((made.done.path / "result.json").read_text())["failures"] == len(lost)


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
