"""Studies as they are run: each run once; interrupted, killed, failed, and resumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedstill.core.errors import InputError
from fedstill.runtime.assemble import make_experiment
from fedstill.runtime.launch import launch
from fedstill.runtime.run_folder import RunFolder
from fedstill.studies import Results, Study, jobs
from fedstill.studies.status import RunStatus
from fedstill.studies.study_plan import Job
from fedstill.studies.study_progress import StudyProgress

from ..warm import Warm

Make = Callable[..., dict[str, Any]]
CHILD = Path(__file__).with_name("counting.py")


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The methods of the runs that were launched, in order."""
    told: list[str] = []

    def noted(experiment: Any, **options: Any) -> Any:
        told.append(experiment.method.name)
        return launch(experiment, **options)

    monkeypatch.setattr(jobs, "launch", noted)
    return told


def failing(monkeypatch: pytest.MonkeyPatch, method: str, error: BaseException) -> None:
    """From now on this method's runs raise an error."""
    inner = jobs.launch

    def broken(experiment: Any, **options: Any) -> Any:
        if experiment.method.name == method:
            raise error
        return inner(experiment, **options)

    monkeypatch.setattr(jobs, "launch", broken)


def contents(out: Path) -> dict[str, bytes]:
    left_out = {"timing.json", ".lock", "checkpoint-previous.safetensors"}
    files = [path for path in out.rglob("*") if path.is_file() and path.name not in left_out]
    return {str(path.relative_to(out)): path.read_bytes() for path in files}


def test_every_run_is_done_once_and_shared_between_studies(recipe: Make, tmp_path: Path, launched: list[str]) -> None:
    results = Study(recipe()).run(tmp_path)
    assert launched == ["fedavg", "fedavg", "fedprox", "fedprox", "centralised", "centralised"]
    assert len(results.runs) == 6
    assert results.failures == {}
    wider = Study(recipe({"seed": [42, 7, 1], "method": ["fedprox", "fedavg"]}))
    assert len(wider.run(tmp_path).runs) == 6
    assert launched[6:] == ["fedprox", "fedavg"], "only the new seed"
    assert Study(recipe()).run(tmp_path) == results
    assert len(launched) == 8


def test_the_figures_are_those_of_the_runs(recipe: Make, tmp_path: Path) -> None:
    """Of a method with personal models; the journal's last line and the result must agree with the study's row."""
    study = Study(recipe({"method": ["local-only"]}), {"rounds": 2, "seed": 3})
    ((cell, row),) = study.run(tmp_path).runs.items()
    run = RunStatus(tmp_path).run(study.study_plan.jobs[0])
    assert run is not None
    assert cell == ("local-only",)
    assert run.experiment.seed == 3
    assert row.figures["accuracy"] == round(run.accuracy, 6)
    assert row.figures["best"] == round(run.best_accuracy, 6)
    assert row.figures["personal"] == round(run.journal[-1].evaluation.personal.mean, 6)
    assert row.figures["personal_std"] == round(run.journal[-1].evaluation.personal.std, 6)
    assert row.figures["bytes_up"] == sum(record.bytes.up for record in run.journal)
    assert row.figures["non_finite"] == 0


def test_a_failing_run_is_recorded_and_the_rest_goes_on(
    recipe: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launched: list[str]
) -> None:
    with monkeypatch.context() as patch:
        failing(patch, "fedprox", ValueError("no\nsuch luck"))
        results = Study(recipe()).run(tmp_path)
    assert results.failures == {("fedprox", seed): "ValueError: no such luck" for seed in ("7", "42")}
    assert len(results.runs) == 4
    record = json.loads(next((tmp_path / "failures").iterdir()).read_text())
    assert record["experiment"]["method"]["name"] == "fedprox"
    assert "ValueError: no" in record["details"]

    launched.clear()
    assert Study(recipe()).run(tmp_path) == results, "what failed is left alone"
    assert launched == []
    mended = Study(recipe()).run(tmp_path, retry_failed=True)
    assert launched == ["fedprox", "fedprox"]
    assert (len(mended.runs), mended.failures) == (6, {})
    assert list((tmp_path / "failures").iterdir()) == []


def test_what_cannot_be_planned_is_a_failure_too(recipe: Make, tmp_path: Path) -> None:
    results = Study(recipe({"clients": [5000, 2]}, method="fedavg")).run(tmp_path)
    assert results.failures == {("5000",): "5,000 clients cannot share 1,438 samples: ask for at most 1,438"}
    assert list(results.runs) == [("2",)]


def test_an_interrupted_study_goes_on(
    recipe: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launched: list[str]
) -> None:
    with monkeypatch.context() as patch:
        failing(patch, "fedprox", KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            Study(recipe()).run(tmp_path)
    assert len(Study(recipe()).results(tmp_path).runs) == 2
    launched.clear()
    assert len(Study(recipe()).run(tmp_path).runs) == 6
    assert launched == ["fedprox", "fedprox", "centralised", "centralised"]


def test_missing_data_is_refused_before_anything_runs(recipe: Make, tmp_path: Path) -> None:
    study = Study(recipe({"data": ["digits", "mnist"]}, method="fedavg"))
    assert list(study.study_plan.missing) == ["mnist"]
    with pytest.raises(InputError, match=r"the study cannot run here: .*mnist"):
        study.run(tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("workers", [0, -1])
def test_a_crew_of_nobody_is_refused(recipe: Make, tmp_path: Path, workers: int) -> None:
    with pytest.raises(InputError, match="at least one is needed"):
        Study(recipe()).run(tmp_path, workers=workers)


def test_a_run_that_somebody_else_works_on_is_revisited_at_the_end(recipe: Make, tmp_path: Path) -> None:
    """The lock of the first run is held until everything else is done; then it is freed, and the run is done too."""
    study = Study(recipe())
    first = make_experiment(study.expand()[0].given)
    path = launch(first, out=tmp_path).path
    (path / "result.json").rename(path / "hidden")
    lock = RunFolder(path).lock()
    order: list[str] = []

    class Observer:
        def start(self, tally: StudyProgress) -> None: ...

        def settled(self, tally: StudyProgress, job: Job, outcome: Any) -> None:
            order.append(str(job.cell))

        def heard(self, tally: StudyProgress) -> None: ...

        def waiting(self, tally: StudyProgress, number: int) -> None:
            assert (number, len(order)) == (1, 5)
            lock.release()

    assert len(study.run(tmp_path, observers=[Observer()]).runs) == 6
    assert order[-1] == "fedavg, seed 7"


def test_a_lock_taken_in_the_last_moment_is_no_failure(recipe: Make, tmp_path: Path) -> None:
    cell = Study(recipe()).expand()[0]
    folder = launch(make_experiment(cell.given), out=tmp_path).path
    lock = RunFolder(folder).lock()
    assert [outcome.state for outcome in jobs.perform([cell.given], jobs.Place(str(tmp_path)))] == ["busy"]
    lock.release()
    assert [outcome.state for outcome in jobs.perform([cell.given], jobs.Place(str(tmp_path)))] == ["done"]


def test_time_left_is_that_of_the_same_method(recipe: Make, tmp_path: Path) -> None:
    """Runs of fedavg took 10 s and 20 s, that of fedprox 100 s; left are one of each and one of a method never seen.

    With one worker: 15 + 100 + the mean of all, 130 / 3; with two, half of it.
    """
    grid = {"method": ["fedavg", "fedprox", "fedavgm"], "seed": [1, 2, 3]}
    study = Study(recipe(grid))
    jobs = study.study_plan.jobs
    taken = {jobs[0]: 10.0, jobs[1]: 20.0, jobs[3]: 100.0}
    for job, seconds in taken.items():
        path = launch(make_experiment(job.cell.given), out=tmp_path).path
        RunFolder(path).save_timing({"rounds": [seconds], "checkpoints": []})
    wanted = [*taken, jobs[2], jobs[4], jobs[6]]
    expected = 15 + 100 + 130 / 3
    assert StudyProgress(RunStatus(tmp_path), wanted, 1).seconds_left() == pytest.approx(expected)
    assert StudyProgress(RunStatus(tmp_path), wanted, 2).seconds_left() == pytest.approx(expected / 2)
    assert StudyProgress(RunStatus(tmp_path), wanted[3:], 1).seconds_left() is None


def child(warm: Warm, recipe: str, out: Path, log: Path, workers: int = 1) -> subprocess.Popen[str]:
    command = [*warm.command(), str(CHILD), recipe, str(out), str(log), str(workers)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_two_processes_share_the_work(recipe: Make, written: Callable[..., str], warm: Warm, tmp_path: Path) -> None:
    file = written(recipe({"method": ["fedavg", "fedprox"], "seed": [1, 2, 3]}))
    both = [child(warm, file, tmp_path / "runs", tmp_path / "log") for _ in range(2)]
    for process in both:
        out, err = process.communicate(timeout=300)
        assert (process.returncode, out.strip()) == (0, "6"), err
    started = (tmp_path / "log").read_text().split()
    assert len(started) == len(set(started)) == 6, "nothing was done twice"
    alone: Results = Study(file).run(tmp_path / "alone")
    assert contents(tmp_path / "runs") == contents(tmp_path / "alone")
    assert list(alone.runs) == list(Study(file).results(tmp_path / "runs").runs)


def test_a_killed_study_leaves_nobody_behind_and_goes_on(
    recipe: Make, written: Callable[..., str], warm: Warm, tmp_path: Path
) -> None:
    """Killed, with SIGKILL, while two workers are at it: they go too, and the rest is done by the next attempt."""
    file = written(recipe({"method": ["fedavg", "fedprox"], "seed": [1, 2]}, rounds=8))
    out = tmp_path / "runs"
    process = child(warm, file, out, tmp_path / "log", workers=2)
    deadline = time.monotonic() + 120
    while not list(out.glob("*/result.json")) and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    done = list(out.glob("*/result.json"))
    assert 1 <= len(done) < 4
    study = Study(file)
    ledger = RunStatus(out)
    while any(ledger.busy(job) for job in study.study_plan.jobs):
        assert time.monotonic() < deadline, "a worker has outlived its study"
        time.sleep(0.05)
    assert len(study.run(out).runs) == 4
    assert Study(file).run(tmp_path / "whole").failures == {}
    assert contents(out) == contents(tmp_path / "whole")


DEADLY = """
import os, pathlib, signal
from fedstill.data.bundle import datasets
HOME, DEATHS = {home}, pathlib.Path({deaths!r})
@datasets.register('deadly')
def deadly(source):
    '''Not for long.'''
    if os.getpid() != HOME and (not DEATHS.exists() or len(DEATHS.read_text()) < {most}):
        with DEATHS.open('a') as file:
            file.write('x')
        os.kill(os.getpid(), signal.SIGKILL)
    return datasets['digits'](source)
"""


class StudyNotes:
    """Callbacks that remember."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def on_note(self, text: str) -> None:
        self.notes.append(text)


@pytest.mark.parametrize("most", [1, 2, 9])
def test_a_run_whose_worker_is_killed_goes_on_in_another_one(recipe: Make, tmp_path: Path, most: int) -> None:
    """A plugin whose data set kills the processes that load it, but not the one that planned the study."""
    plugin, deaths = tmp_path / "deadly.py", tmp_path / "deaths"
    plugin.write_text(DEADLY.format(home=os.getpid(), deaths=str(deaths), most=most))
    study = Study(recipe({"data": ["deadly", "digits"]}, method="fedavg"), plugins=[plugin])
    notes = StudyNotes()
    results = study.run(tmp_path / "runs", workers=2, callbacks=notes)
    assert len(deaths.read_text()) == min(most, 3)
    if most > 3:
        assert results.failures == {("deadly",): "its worker process was ended by SIGKILL, in each of 3 attempts"}
        assert list(results.runs) == [("digits",)]
    else:
        assert notes.notes == ["deadly: its worker process was ended by SIGKILL: the run went on in another one"]
        assert contents(tmp_path / "runs") == contents(study.run(tmp_path / "whole") and tmp_path / "whole")
