"""Worker processes: reused, replaced when they die, quiet, and with one copy of the data."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fedstill.core.errors import InputError, RunError
from fedstill.core.protocols import Engine
from fedstill.engines import InProcess, Processes, make_engine
from fedstill.engines.client_job import ClientJob
from fedstill.engines.processes import _mapped, _pickle_sharing
from fedstill.engines.workers import Worker
from fedstill.runtime.run import execute


@pytest.fixture
def engine(engines: dict[str, Engine]) -> Iterator[Processes]:
    """Two workers that all tests reuse, since each takes seconds to start; those killed here leave the pool."""
    engine = engines["processes-2"]
    assert isinstance(engine, Processes)
    yield engine
    engine.pool.workers[:] = [worker for worker in engine.pool.workers if worker.process.poll() is None]


def test_workers_are_started_once_and_reused(tiny_plan: Any, tmp_path: Path, engine: Processes) -> None:
    execute(tiny_plan(rounds=2), engine, tmp_path / "a")
    first = [worker.process.pid for worker in engine.pool.workers]
    execute(tiny_plan(rounds=1, seed=2), engine, tmp_path / "b")
    assert [worker.process.pid for worker in engine.pool.workers] == first
    assert len(first) == 2


class Notes:
    """An observer that remembers notes, and kills a worker after the first round."""

    def __init__(self, engine: Processes) -> None:
        self.engine = engine
        self.notes: list[str] = []

    def start(self, experiment: Any, journal: Any) -> None: ...

    def round(self, record: Any) -> None:
        if record.round == 1:
            for worker in self.engine.pool.workers:
                os.kill(worker.process.pid, signal.SIGKILL)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def warn(self, text: str) -> None: ...

    def finish(self) -> None: ...


Deadly = Callable[[Callable[[ClientJob], int]], None]


@pytest.fixture
def deadly(monkeypatch: pytest.MonkeyPatch) -> Deadly:
    """Workers that get a job are sent a signal, where `choose` gives one, and have ended when the job is sent to them.

    A signal after that could be late: a small job is done in less time than it takes to end a copy of a process.
    """
    hand_over = Processes._hand_over

    def arm(choose: Callable[[ClientJob], int]) -> None:
        def armed(self: Processes, described: bytes, job: ClientJob) -> None:
            sent, assign = choose(job), self.pool.assign

            def doomed(job: ClientJob) -> Worker:
                worker = assign(job)
                os.kill(worker.process.pid, sent)
                worker.process.wait()
                select.select([worker._answers], [], [], 10)  # open until the copy has ended, too
                return worker

            with pytest.MonkeyPatch.context() as patch:
                if sent:
                    patch.setattr(self.pool, "assign", doomed)
                hand_over(self, described, job)

        monkeypatch.setattr(Processes, "_hand_over", armed)

    return arm


def everything(run: Path) -> dict[str, bytes]:
    left_out = {"timing.json", ".lock", "checkpoint-previous.safetensors"}
    files = [path for path in run.rglob("*") if path.is_file() and path.name not in left_out]
    return {str(path.relative_to(run)): path.read_bytes() for path in files}


def test_a_reply_whose_worker_is_killed_is_computed_again(
    tiny_plan: Any, tmp_path: Path, engine: Processes, deadly: Deadly
) -> None:
    """Workers are killed between rounds, so that the next jobs find them dead, and one right after it got a job."""
    plan, handed = tiny_plan(method="scaffold", model="cnn-bn", clients=4, rounds=2), list[int]()

    def second(job: ClientJob) -> int:
        handed.append(job.who.id)
        return signal.SIGKILL if len(handed) == 2 else 0

    deadly(second)
    watching = Notes(engine)
    run = execute(plan, engine, tmp_path / "killed", [watching])
    assert everything(run.path) == everything(execute(plan, InProcess(), tmp_path / "whole").path)
    assert 2 <= len(watching.notes) == len(handed) - 2 * 4
    assert all("was ended by SIGKILL: the reply is computed again by another one" in note for note in watching.notes)
    assert {note.split(",")[0] for note in watching.notes} == {"round 1", "round 2"}


def test_a_job_that_ends_every_worker_ends_the_run_with_a_sentence(
    tiny_plan: Any, tmp_path: Path, engine: Processes, deadly: Deadly
) -> None:
    plan, tried = tiny_plan(rounds=1), list[int]()

    def third(job: ClientJob) -> int:
        if job.who.id != 3:
            return 0
        tried.append(job.lost)
        return signal.SIGKILL

    deadly(third)
    sentence = r"round 1, \w+, client 3: its worker process was ended by SIGKILL, in each of 3 attempts: see to"
    with pytest.raises(RunError, match=sentence) as error:
        execute(plan, engine, tmp_path / "run")
    assert tried == [0, 1, 2]
    assert error.value.exit_code == 1
    deadly(lambda job: 0)
    assert execute(plan, engine, tmp_path / "run").result() == execute(plan, InProcess(), tmp_path / "whole").result()


def test_a_worker_that_dies_with_nothing_to_do_costs_nothing(
    tiny_plan: Any, tmp_path: Path, engine: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One client a round for two workers: whichever of them is dead, at most the one that was asked is lost."""
    plan = tiny_plan(rounds=3, participation={"name": "random", "number": 1})
    expect = type(plan.method).expect

    def killing(self: Any, *args: Any) -> Any:
        for worker in engine.pool.workers[:1]:  # jobs go to the last one
            worker.process.kill()  # one that was killed in an earlier round stays dead until it is needed
            worker.process.wait()
        return expect(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(type(plan.method), "expect", killing)
        run = execute(plan, engine, tmp_path / "killed")
    assert all(record.failures == () for record in run.journal())
    assert run.result() == execute(plan, InProcess(), tmp_path / "whole").result()


def test_an_engine_left_in_mid_round_starts_clean(
    tiny_plan: Any, tmp_path: Path, engine: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What workers still had to say when a run was stopped must not reach the next run."""

    class Stopped(Exception):  # noqa: N818
        pass

    plan = tiny_plan(rounds=1)

    def stop(self: Any, *args: Any) -> Any:
        raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr(type(plan.method), "expect", stop)
        with pytest.raises(Stopped):
            execute(plan, engine, tmp_path / "stopped")
    again = execute(plan, engine, tmp_path / "again")
    whole = execute(plan, InProcess(), tmp_path / "whole")
    assert again.result() == whole.result()


@pytest.mark.usefixtures("cold")
def test_a_new_interpreter_gives_the_same_bits_and_is_not_left_running(tiny_plan: Any, tmp_path: Path) -> None:
    with Processes(1) as engine:
        run = execute(tiny_plan(rounds=1), engine, tmp_path / "there")
        process = engine.pool.workers[0].process
        scratch = engine.pool._scratch
        assert scratch is not None
    assert process.poll() is not None
    assert not Path(scratch.name).exists()
    assert run.result() == execute(tiny_plan(rounds=1), InProcess(), tmp_path / "here").result()


def test_large_tensors_are_mapped_from_one_file(tmp_path: Path) -> None:
    large = torch.arange(2**16, dtype=torch.float32).reshape(256, 256)
    data = _pickle_sharing({"large": large, "small": torch.ones(3)}, tmp_path)
    assert len(data) < 2_000
    (file,) = tmp_path.iterdir()
    assert file.stat().st_size == large.nbytes
    assert torch.equal(_mapped(str(file), torch.float32, (256, 256)), large)


def test_unknown_engines_get_a_suggestion() -> None:
    with pytest.raises(InputError, match="did you mean 'in-process'"):
        make_engine("inprocess")
