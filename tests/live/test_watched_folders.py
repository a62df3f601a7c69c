"""What the page is told, of folders in every state."""

from __future__ import annotations

import json
import os
import shutil
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from fedstill.core.locks import lock_folder
from fedstill.live import watched_folders
from fedstill.live.watched_folders import WatchedFolders

from .conftest import MakeFolder, line


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched_folders, "_EVERY", 0.0)


def by_name(state: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {run["name"]: run for run in state["runs"]}


def test_states_titles_and_the_time_left(make_folder: MakeFolder) -> None:
    first = make_folder("fedavg-digits-00", (0.5, 0.7))
    busy = make_folder("fedavg-digits-01", (0.4, 0.6, 0.55), {"seed": 1}, finished=False)
    make_folder("fedavg-digits-02", (0.1,), {"seed": 2}, finished=False)
    (make_folder("fedavg-digits-03") / "config.json").write_text("{")
    with lock_folder(busy) or pytest.fail("locked"):
        watched = WatchedFolders([first.parent])
        found = by_name(watched.state())
        assert {name[-2:]: run["state"] for name, run in found.items()} == {
            "00": "finished",
            "01": "running",
            "02": "unfinished",
            "03": "cannot be read",
        }
        going = found["fedavg-digits-01"]
        assert (going["round"], going["rounds"], going["best"], going["last"]) == (3, 10, 0.6, 0.55)
        assert going["what"] == "fedavg, seed 1"
        assert 0 < going["left"] <= 2.5 * 7
    (again,) = by_name(watched.state(watched.version)).values()
    assert (again["state"], again["left"]) == ("unfinished", None)


def test_settings_that_all_runs_with_a_part_share_are_not_told(make_folder: MakeFolder) -> None:
    """Of skewed and equal shards `dirichlet` and `iid` is enough; how skewed, only where that differs."""
    skewed = {"name": "dirichlet", "alpha": 0.1, "min_samples": 1}
    folder = make_folder("a", settings={"partition": {"name": "iid"}})
    make_folder("b", settings={"partition": skewed})
    state = WatchedFolders([folder.parent]).state()
    assert {run["what"] for run in state["runs"]} == {"fedavg, iid", "fedavg, dirichlet"}
    make_folder("c", settings={"partition": {**skewed, "alpha": 0.5}})
    found = by_name(WatchedFolders([folder.parent]).state())
    assert found["c"]["what"] == "fedavg, dirichlet, alpha 0.5"


def test_students_are_called_by_their_teachers(make_folder: MakeFolder) -> None:
    folder = make_folder("distill-1", settings={"teachers": [{"run": "runs/fedavg-00112233445566", "file": None}]})
    make_folder("distill-2", settings={"teachers": [{"file": "old.safetensors"}]})
    make_folder("distill-3", settings={"teachers": []})
    found = by_name(WatchedFolders([folder.parent]).state())
    assert [found[f"distill-{number}"]["what"] for number in (1, 2, 3)] == [
        "fedavg, from fedavg-00112233",
        "fedavg, from old.safetensors",
        "fedavg",
    ]


def test_what_all_runs_have_is_told_before_what_one_has(make_folder: MakeFolder) -> None:
    """Nine settings of one run's dropout left no room for the seeds of the others."""
    dropout = {f"setting_{letter}": 1 for letter in "abcdefghi"}
    folder = make_folder("a-1", settings={"dropout": {"name": "bursty", **dropout}})
    make_folder("a-2", settings={"dropout": {"name": "none"}, "seed": 1})
    make_folder("a-3", settings={"dropout": {"name": "none"}, "seed": 2})
    found = by_name(WatchedFolders([folder.parent]).state())
    assert [found[name]["what"] for name in ("a-2", "a-3")] == ["fedavg, seed 1", "fedavg, seed 2"]


def test_only_what_changed_is_told_again(make_folder: MakeFolder) -> None:
    folder = make_folder("a-1", (0.5,), finished=False)
    make_folder("b-2", (0.5,), {"seed": 3})
    watched = WatchedFolders([folder.parent])
    whole = watched.state()
    assert whole["whole"]
    assert len(whole["runs"]) == 2
    assert watched.state(whole["version"])["runs"] == []
    with open(folder / "journal.jsonl", "a") as file:
        file.write(line(2, 0.8) + "\n")
    later = watched.state(whole["version"])
    assert [(run["name"], run["round"], run["curve"]) for run in later["runs"]] == [("a-1", 2, [0.5, 0.8])]
    shutil.rmtree(folder)
    gone = watched.state(later["version"])
    assert gone["gone"] == [later["runs"][0]["id"]]
    assert watched.state(1)["whole"], "a version of another process"
    assert watched.details(["nonsense", *gone["gone"]]) == []


def test_nothing_in_a_folder_breaks_the_page(make_folder: MakeFolder, tmp_path: Path) -> None:
    folder = make_folder("good-1")
    runs = folder.parent
    for number, content in enumerate(
        ["", "[]", "7", "null", '{"experiment": 3}', "[" * 9000, '{"format": 99}', "\x00"]
    ):
        bad = make_folder(f"bad-{number}")
        for name in ("config.json", "result.json", "timing.json", "metrics.json"):
            (bad / name).write_text(content)
    odd = make_folder(
        "odd-1", settings={"seed": [1, {"a": "<b>"}], "deep": {"a": {"b": {"c": {"d": {"e": {"f": 1}}}}}}}
    )
    (odd / "timing.json").write_text('{"rounds": ["x", null, 1e999, 3], "checkpoints": 3}')
    (odd / "metrics.json").write_text('{"last": {"overall": {"auc": "x", "f1": 0.5}}, "best": 3}')
    (runs / "loop").symlink_to(runs / "loop")
    (runs / "none").symlink_to(runs / "nothing")
    (runs / "file").write_text("x")
    os.mkfifo(runs / "pipe")
    (runs / "studies" / "s").mkdir(parents=True)
    (runs / "studies" / "s" / "timing.json").write_text('{"study": 3, "total": "x", "working": [1, {"cell": 2}]}')
    (runs / "failures").mkdir()
    (runs / "failures" / "f.json").write_text('{"error": "<script>", "cell": {"a": "<b>"}}')
    watched = WatchedFolders([runs, tmp_path / "missing"])
    state = watched.state()
    json.dumps([state, watched.details([run["id"] for run in state["runs"]])], allow_nan=False)
    assert by_name(state)["good-1"]["state"] == "finished"
    assert {run["state"] for name, run in by_name(state).items() if name.startswith("bad")} == {"cannot be read"}
    assert state["missing"] == [str(tmp_path / "missing")]
    assert state["failures"] == [{"cell": "<b>", "error": "<script>", "refused": False}]
    (details,) = watched.details([by_name(state)["odd-1"]["id"]])
    assert details["metrics"] == {"last": {"f1": 0.5}}


def test_a_study_under_way_one_that_was_killed_and_one_that_ended(make_folder: MakeFolder) -> None:
    studies = make_folder("a-1").parent / "studies"
    told = {"study": "grid", "state": "running", "total": 30, "done": 10, "failed": 1, "refused": 0, "left": 40.0}
    working = [{"cell": "fedavg, seed 1", "share": 0.5}]
    for name in ("going", "killed", "over"):
        state = "finished" if name == "over" else "running"
        (studies / name).mkdir(parents=True)
        (studies / name / "timing.json").write_text(
            json.dumps({**told, "study": name, "state": state, "working": working})
        )
    os.utime(studies / "killed" / "timing.json", (time.time() - 600,) * 2)
    found = {one["name"]: one for one in WatchedFolders([studies.parent]).state()["studies"]}
    assert {name: (one["state"], one["left"]) for name, one in found.items()} == {
        "going": ("running", 40.0),
        "killed": ("stopped", None),
        "over": ("finished", None),
    }
    assert found["going"]["working"] == working


@pytest.mark.parametrize("place", [".", "server", "clinics/server"])
def test_a_deployment_by_any_of_its_folders(tmp_path: Path, place: str) -> None:
    folder = tmp_path / place
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "server.key").write_text("SECRET")
    told = {
        "state": "running",
        "round": 2,
        "rounds": 5,
        "run": "fedavg-x",
        "sites": {"0": True, "1": False, "10": True},
    }
    told |= {"refusals": {"1": "its policy"}, "failures": {"10": "round 1: late"}}
    (folder / "status.json").write_text(json.dumps({**told, "at": datetime.now(UTC).isoformat()}))
    watched = WatchedFolders([tmp_path])
    state = watched.state()
    (one,) = state["deployments"]
    assert (one["alive"], one["round"], [site["site"] for site in one["sites"]]) == (True, 2, ["0", "1", "10"])
    assert [site["connected"] for site in one["sites"]] == [True, False, True]
    assert [site["refused"] for site in one["sites"]] == ["", "its policy", ""]
    assert "SECRET" not in json.dumps(state)
    (folder / "status.json").write_text(json.dumps({**told, "at": "2020-01-01T00:00:00+00:00"}))
    (one,) = watched.state()["deployments"]
    assert (one["alive"], one["state"]) == (False, "not running (last: running)")
    assert not any(site["connected"] for site in one["sites"])
    (folder / "status.json").write_text('{"state": 3}')
    assert watched.state()["deployments"] == []


def test_many_runs_are_told_once_and_cost_little_after(make_folder: MakeFolder, tmp_path: Path) -> None:
    source = make_folder("fedavg-digits-x", [0.5] * 5)
    for number in range(200):
        shutil.copytree(source, source.parent / f"fedavg-digits-{number}", copy_function=os.link)
    watched = WatchedFolders([source.parent])
    state = watched.state()
    while state["unread"]:
        state = watched.state()
    began = time.process_time()
    assert watched.state(state["version"])["runs"] == []
    assert time.process_time() - began < 0.2, "times of files are compared, and nothing is read"
