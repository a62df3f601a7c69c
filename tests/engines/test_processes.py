"""Worker processes: reused, replaced when they die, quiet, and with one copy of the data."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fedstill.core.errors import InputError
from fedstill.core.protocols import Engine
from fedstill.engines import InProcess, Processes, make_engine
from fedstill.engines.processes import _mapped, _pickle_sharing
from fedstill.runtime.run import execute

pytestmark = pytest.mark.xdist_group("conformance")  # so that one worker makes the pools


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


def test_a_worker_that_dies_costs_one_reply_and_is_replaced(tiny_plan: Any, tmp_path: Path, engine: Processes) -> None:
    class Killer:
        """Kills a worker between rounds, so that the next job finds it dead."""

        def start(self, experiment: Any, journal: Any) -> None: ...

        def round(self, record: dict[str, Any]) -> None:
            if record.round == 1:
                os.kill(engine.pool.workers[0].process.pid, signal.SIGKILL)

        def note(self, text: str) -> None: ...

        def warn(self, text: str) -> None: ...

        def finish(self) -> None: ...

    run = execute(tiny_plan(rounds=3), engine, tmp_path, [Killer()])
    first, second, third = run.journal()
    assert first.failures == ()
    assert [lost.reason for lost in second.failures] == ["failed"]
    assert "worker process ended" in second.failures[0].detail
    assert third.failures == ()


def test_a_worker_that_dies_with_nothing_to_do_costs_nothing(
    tiny_plan: Any, tmp_path: Path, engine: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One client a round for two workers: whichever of them is dead, at most the one that was asked is lost."""
    plan = tiny_plan(rounds=3, participation={"name": "random", "number": 1})
    expect = type(plan.method).expect

    def killing(self: Any, *args: Any) -> Any:
        for worker in engine.pool.workers[:1]:  # jobs go to the last one
            os.kill(worker.process.pid, signal.SIGKILL)
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
