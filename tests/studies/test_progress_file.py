"""The file that tells others how far a study is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedstill.studies import Study
from fedstill.studies.progress_file import FOLDER, NAME, ProgressFile

RECIPE = {
    "experiment": {
        "method": "fedavg",
        "data": "digits",
        "model": "mlp",
        "clients": 2,
        "rounds": 1,
        "training": {"epochs": 1},
    },
    "grid": {"seed": [1, 2]},
}


def test_a_study_writes_how_far_it_is(tmp_path: Path) -> None:
    seen = []

    def on_run(labels: object, run: object) -> None:
        (path,) = (tmp_path / FOLDER).glob(f"*/{NAME}")
        seen.append((path.name, json.loads(path.read_text())["state"]))

    Study(RECIPE).run(tmp_path, workers=1, callbacks=on_run)
    assert [state for _, state in seen] == ["running", "running"]
    (path,) = (tmp_path / FOLDER).glob(f"*/{NAME}")
    told = json.loads(path.read_text())
    ended = {"state": "finished", "total": 2, "done": 2, "failed": 0, "refused": 0, "working": [], "left": None}
    assert {key: told[key] for key in ended} == ended


def test_a_disk_that_takes_nothing_is_no_reason_to_stop(tmp_path: Path) -> None:
    (tmp_path / FOLDER).write_text("a file in the folder's place")
    assert len(Study({**RECIPE, "grid": {"seed": [1]}}).run(tmp_path, workers=1).runs) == 1


def test_a_study_that_is_interrupted_says_stopped(tmp_path: Path) -> None:
    def interrupted(labels: object, run: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Study(RECIPE).run(tmp_path, workers=1, callbacks=interrupted)
    (path,) = (tmp_path / FOLDER).glob(f"*/{NAME}")
    assert json.loads(path.read_text())["state"] == "stopped"


def test_no_file_before_a_study_begins(tmp_path: Path) -> None:
    with ProgressFile(tmp_path, "t", "", ""):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("title", ["../a b", "..", "/etc/x", "a\x00b", "x" * 400, "ä ü"])
def test_a_title_stays_within_the_folder(tmp_path: Path, title: str) -> None:
    path = ProgressFile(tmp_path, title, "", "").path
    assert path.parent.parent == tmp_path / FOLDER
    path.parent.mkdir(parents=True)
    path.write_text("")
