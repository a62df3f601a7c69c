"""Trackers: what reaches them, once each, and that nothing they do touches a run."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import fedstill
from fedstill.core.errors import InputError
from fedstill.tracking.tracker import TrackedRun
from fedstill.tracking.tracking import METHODS, Tracking, chosen_trackers, run_files, tracking

SMALL: dict[str, Any] = {"data": "digits", "model": "mlp", "clients": 2, "rounds": 3, "epochs": 1}


class Memory(fedstill.Tracker):
    """Keeps everything in lists, across attempts at a run."""

    def __init__(self) -> None:
        self.steps: dict[str, list[int]] = {}
        self.metrics: dict[str, dict[str, float]] = {}
        self.files: dict[str, list[str]] = {}
        self.ended: dict[str, list[str]] = {}
        self.seen: dict[str, TrackedRun] = {}

    def open(self, run: TrackedRun) -> int:
        self.seen[run.key] = run
        return max(self.steps.get(run.key, [0]))

    def log(self, run: TrackedRun, step: int, metrics: Mapping[str, float]) -> None:
        self.steps.setdefault(run.key, []).append(step)
        self.metrics[run.key] = dict(metrics)

    def save(self, run: TrackedRun, files: Mapping[str, Path]) -> None:
        assert all(path.is_file() for path in files.values())
        self.files[run.key] = sorted(files)

    def close(self, run: TrackedRun, status: str) -> None:
        self.ended.setdefault(run.key, []).append(status)


def stop_after(round: int) -> Any:
    def stop(record: Any) -> None:
        if record.round == round:
            raise fedstill.StopRun

    return stop


def comparable(run: fedstill.Run) -> dict[str, bytes]:
    files = [path for path in run.path.rglob("*") if path.is_file() and path.name not in ("timing.json", ".lock")]
    return {path.name: path.read_bytes() for path in files}


def test_a_resumed_run_has_each_round_once_and_the_same_results(tmp_path: Path) -> None:
    kept = Memory()
    plain = fedstill.run("fedavg", out=tmp_path / "plain", **SMALL)
    fedstill.run("fedavg", out=tmp_path / "tracked", track=kept, callbacks=stop_after(1), **SMALL)
    run = fedstill.run("fedavg", out=tmp_path / "tracked", track=[kept], **SMALL)
    assert comparable(plain) == comparable(run)
    assert kept.steps == {run.path.name: [1, 2, 3]}
    assert kept.ended == {run.path.name: ["stopped", "finished"]}
    assert {"model-last.safetensors", "model-best.safetensors", "config.json"} <= set(kept.files[run.path.name])
    assert kept.metrics[run.path.name]["test/accuracy"] == run.accuracy
    assert kept.seen[run.path.name].settings["training"]["epochs"] == 1
    # A run that is found finished is complete already; in another store it is added as a whole.
    fedstill.run("fedavg", out=tmp_path / "tracked", track=kept, **SMALL)
    assert kept.steps == {run.path.name: [1, 2, 3]}
    other = Memory()
    fedstill.run("fedavg", out=tmp_path / "tracked", track=other, **SMALL)
    assert other.steps == kept.steps


def test_rounds_that_are_computed_again_are_not_logged_again(tmp_path: Path) -> None:
    kept = Memory()
    run = fedstill.run("fedavg", out=tmp_path, track=kept, callbacks=stop_after(2), **SMALL)
    newest = run.path / "checkpoint.safetensors"
    newest.write_bytes(newest.read_bytes()[:-9])  # damaged: round 2 has to be computed again
    fedstill.run("fedavg", out=tmp_path, track=kept, **SMALL)
    assert kept.steps == {run.path.name: [1, 2, 3]}


def test_what_a_tracker_missed_is_added_later(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Breaks(Memory):
        broken = True

        def log(self, run: TrackedRun, step: int, metrics: Mapping[str, float]) -> None:
            if self.broken and step == 2:
                raise OSError("the disk is away")
            super().log(run, step, metrics)

    breaks, kept = Breaks(), Memory()
    with caplog.at_level(logging.INFO), pytest.warns(RuntimeWarning, match="Breaks failed .*the disk is away"):
        run = fedstill.run("fedavg", out=tmp_path, track=[breaks, kept], **SMALL)
    assert run.finished
    assert breaks.steps == {run.path.name: [1]}
    assert kept.steps == {run.path.name: [1, 2, 3]}
    assert any(record.exc_info for record in caplog.records)
    breaks.broken = False
    fedstill.run("fedavg", out=tmp_path, track=breaks, **SMALL)
    assert breaks.steps == kept.steps


def test_a_tracker_that_cannot_open_a_run_leaves_the_others(tmp_path: Path) -> None:
    class Closed(Memory):
        def open(self, run: TrackedRun) -> int:
            raise OSError("the store is away")

    kept = Memory()
    with pytest.warns(RuntimeWarning, match="Closed failed .*the store is away"):
        run = fedstill.run("fedavg", out=tmp_path, track=[Closed(), kept], **SMALL)
    assert kept.steps == {run.path.name: [1, 2, 3]}


def test_a_failed_run_is_closed_as_failed(tmp_path: Path) -> None:
    def fail(record: Any) -> None:
        raise ValueError("a callback of the user's own")

    kept = Memory()
    with pytest.raises(ValueError, match="own"):
        fedstill.run("fedavg", out=tmp_path, track=kept, callbacks=fail, **SMALL)
    assert [*kept.ended.values()] == [["failed"]]
    assert [*kept.steps.values()] == [[1]]


def test_cells_of_a_study_are_a_group(tmp_path: Path) -> None:
    experiment = {**SMALL, "rounds": 1, "training": {"epochs": 1}}
    del experiment["epochs"]
    recipe = {"experiment": experiment, "grid": {"method": ["fedavg", "fedprox"]}}
    kept = Memory()
    (tmp_path / "one.yaml").write_text(json.dumps({"experiment": {**experiment, "method": "fedavg"}}))
    done = fedstill.run(tmp_path / "one.yaml", out=tmp_path)  # a run that was there before
    fedstill.study(recipe, out=tmp_path, workers=1, track=kept)
    assert len({run.group for run in kept.seen.values()}) == 1
    assert sorted(run.labels["method"] for run in kept.seen.values()) == ["fedavg", "fedprox"]
    assert [*kept.steps.values()] == [[1], [1]]
    assert any(key.endswith(done.path.name) for key in kept.steps)
    fedstill.study(recipe, out=tmp_path, workers=1, track=kept)
    assert [*kept.steps.values()] == [[1], [1]]


def test_a_query_is_tracked(tmp_path: Path) -> None:
    skewed = {"name": "pathological", "classes_per_client": 3}
    alone = fedstill.run("local-only", model="mlp", clients=4, rounds=1, partition=skewed, out=tmp_path)
    kept = Memory()
    asked = fedstill.query(alone, 0, 7, transfer_epochs=1, head_epochs=1, threshold=0, track=kept, out=tmp_path)
    (key,) = kept.seen
    assert kept.seen[key].kind == "query"
    assert kept.steps[key] == list(range(1, len(asked.epochs) + 2))
    assert kept.metrics[key]["query/gain"] == pytest.approx(float(asked.fate.metrics()["gain"]))


def test_bad_trackers_are_refused_before_any_work(tmp_path: Path) -> None:
    for given, words in (
        ("tensorbord", "did you mean 'tensorboard'"),
        (["wandb", "wandb"], "given twice"),
        (Memory, "is a class"),
        (object(), r"no method log\(run, step, metrics\)"),
    ):
        with pytest.raises(InputError, match=words):
            fedstill.run("fedavg", out=tmp_path / "runs", track=given, **SMALL)
    assert not (tmp_path / "runs").exists()


def test_a_tracker_that_cannot_begin_is_refused(tmp_path: Path) -> None:
    class Broken(Memory):
        def prepare(self, out: Path) -> None:
            raise RuntimeError("no such place")

    with pytest.raises(InputError, match=r"Broken cannot be used: RuntimeError: no such place"):
        tracking(Broken(), tmp_path)


def test_one_that_is_not_installed_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "mlflow", None)
    with pytest.raises(InputError, match=r"pip install 'fedstill\[mlflow\]'"):
        chosen_trackers("mlflow")


def test_an_object_with_log_alone_will_do(tmp_path: Path) -> None:
    seen: list[int] = []

    class Bare:
        def log(self, run: TrackedRun, step: int, metrics: Mapping[str, float]) -> None:
            seen.append(step)

    fedstill.run("fedavg", out=tmp_path, track=Bare(), **SMALL)
    assert seen == [1, 2, 3]


def test_the_documented_methods_are_those_that_are_called() -> None:
    assert {name for name in vars(fedstill.Tracker) if callable(vars(fedstill.Tracker)[name])} == set(METHODS)
    assert tracking(None, Path()) is None
    assert Tracking([], print).active == {}


def test_files_of_a_run_are_models_and_figures(tmp_path: Path) -> None:
    for name in ("model-last.safetensors", "config.json", "journal.jsonl", "checkpoint.safetensors"):
        (tmp_path / name).touch()
    assert sorted(run_files(tmp_path)) == ["config.json", "model-last.safetensors"]
