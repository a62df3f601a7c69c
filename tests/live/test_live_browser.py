"""The page in a real browser, where one is found: it follows a run that goes on while it is open."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

import fedstill
from fedstill.live import watched_folders
from fedstill.live.watched_folders import WatchedFolders

from .conftest import MakeFolder

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no browser found: install chromium to test the drawn page")
ROUNDS = 4


def browse(url: str, profile: Path, *flags: str, seconds: int = 6) -> tuple[str, str]:
    """The page's elements after so many of the browser's own seconds, and what it had to say."""
    done = subprocess.run(
        [
            str(CHROMIUM),
            *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
            *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
            *("--enable-logging=stderr", "--v=0", f"--virtual-time-budget={1000 * seconds}"),
            *("--window-size=500,900", f"--user-data-dir={profile}", *flags, "--dump-dom", url),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout, done.stderr


def test_a_run_that_goes_on_is_seen_to_advance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds and questions of the open page take turns, since a browser's own time runs fast; it is loaded once."""
    monkeypatch.setattr(watched_folders, "_EVERY", 0.0)
    asked, advanced, seen = Event(), Event(), []
    tell = WatchedFolders.state

    def told(self: WatchedFolders, since: int = 0) -> dict[str, Any]:
        if run.is_alive():
            advanced.wait(10)
        advanced.clear()
        state = tell(self, since)
        seen.extend((since > 0, run["state"], run["round"]) for run in state["runs"])
        asked.set()
        return state

    def each_round(record: Any) -> None:
        asked.clear()
        advanced.set()
        asked.wait(10)

    def train() -> None:
        given: dict[str, Any] = {"data": "digits", "model": "mlp", "clients": 2, "rounds": ROUNDS, "epochs": 1}
        fedstill.run("fedavg", out=tmp_path / "runs", callbacks=each_round, **given)
        advanced.set()

    monkeypatch.setattr(WatchedFolders, "state", told)
    (tmp_path / "runs").mkdir()
    run = Thread(target=train)
    with fedstill.watch(tmp_path / "runs", port=0) as page:
        run.start()
        elements, log = browse(page.url, tmp_path / "profile", seconds=20)
        run.join()
    assert "CONSOLE" not in log
    rounds = [round for later, state, round in seen if later and state == "running"]
    assert len(set(rounds)) >= 2, "seen under way, at several rounds, without being loaded again"
    assert rounds == sorted(rounds)
    assert f"{ROUNDS}/{ROUNDS}" in elements
    assert re.search(r'class="state finished">.{0,40}finished', elements)


def test_hostile_names_runs_beside_each_other_and_the_dark(make_folder: MakeFolder, tmp_path: Path) -> None:
    attack = "<img src=x onerror=\"document.title='owned'\">"
    first = make_folder("fedavg-1", (0.5, 0.9), {"data": attack})
    make_folder("fedavg-2", (0.4, None, float("nan"), 0.8), {"data": "digits", "rate": 0.1}, finished=False)
    with fedstill.watch(first.parent, port=0) as page:
        state = page._server.watched.state()
        names = ",".join(run["id"] for run in state["runs"])
        dark = "--blink-settings=preferredColorScheme=0"
        elements, log = browse(f"{page.url}#runs={names}", tmp_path / "profile", dark)
    assert "CONSOLE" not in log
    assert "owned" not in re.sub(r"&lt;.*?&gt;|title=\".*?\"|aria-label=\".*?\"", "", elements)
    assert "<img" not in elements
    assert "2 runs beside each other" in elements
    assert "is ahead by 10.00&nbsp;points in the best round" in elements
    assert elements.count('stroke="var(--series-2)"') >= 3
    assert '<th scope="row">data</th>' in elements, "settings that differ"
    assert 'role="img"' in elements


@pytest.mark.slow
def test_without_runs(tmp_path: Path) -> None:
    with fedstill.watch(tmp_path, port=0) as page:
        elements, log = browse(page.url, tmp_path / "profile", seconds=3)
    assert "CONSOLE" not in log
    assert "No run has begun here yet" in elements
