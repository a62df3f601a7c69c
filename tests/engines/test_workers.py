"""The worker pool: jobs are handed out, the dead are replaced, and nothing is left running."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedstill.core import hardware
from fedstill.core.errors import InputError
from fedstill.engines.workers import WorkerEnded, WorkerPool


def echo(receive: Callable[[], Any], send: Callable[[Any], None]) -> None:
    """In a worker: answers items with its greeting, and does what a few of them ask for."""
    greeting = receive()
    held = None
    while True:
        item = receive()
        if isinstance(item, tuple):
            held = item
            continue
        match item:
            case "print":
                print("not a frame")
            case "gpu":
                item = os.environ.get("CUDA_VISIBLE_DEVICES")
            case "torch":
                item = "torch" in sys.modules
            case "exit":
                os._exit(3)
            case "fail":
                raise ValueError("as asked")
            case "interrupt":
                raise KeyboardInterrupt
            case "sleep":
                send(os.getpid())
                time.sleep(60)
        send((greeting, held, item))


def pool_of(size: int) -> WorkerPool[str]:
    return WorkerPool(size, echo, lambda: "hello")


@pytest.fixture(autouse=True, scope="module")
def _new_interpreters() -> Iterator[None]:
    """Workers as users have them, whatever other tests do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hardware, "python_command", lambda: [sys.executable])
        yield


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool[str]]:
    """One for all tests, since workers take seconds to start; each test leaves it without jobs."""
    with pool_of(2) as made:
        yield made


def test_ctrl_c_does_not_reach_a_worker_not_even_during_its_imports() -> None:
    with pool_of(1) as pool:
        worker = pool.assign("a")
        os.kill(worker.process.pid, signal.SIGINT)
        worker.send("a")
        assert pool.receive() == (worker, ("hello", None, "a"))
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ()), "here it is as before"


def test_workers_answer_are_reused_and_may_print(pool: WorkerPool[str]) -> None:
    pool.fill()
    for job in ("a", "print"):
        pool.assign(job).send(job)
    assert not pool.idle
    received = dict(pool.receive() for _ in range(2))
    assert {pool.finish(worker): item[2] for worker, item in received.items()} == {"a": "a", "print": "print"}
    assert {item[0] for item in received.values()} == {"hello"}
    assert pool.idle
    worker = pool.assign("b")
    assert worker in received, "a third worker would be one too many"
    pool.finish(worker)


def test_a_worker_imports_only_what_its_work_needs(pool: WorkerPool[str]) -> None:
    worker = pool.assign("torch")
    worker.send("torch")
    assert pool.receive()[1][2] is False, "PyTorch takes seconds to import"
    pool.finish(worker)


def test_what_a_worker_holds_already_is_not_sent_again(pool: WorkerPool[str]) -> None:
    first, second = (pickle.dumps((name,)) for name in ("first", "second"))
    worker = pool.assign("a")
    worker.provide("data", first)
    worker.provide("data", second)
    worker._held["data"] = first
    worker.provide("data", first)  # in vain: it counts as held
    worker.send("a")
    assert pool.receive()[1] == ("hello", ("second",), "a")
    pool.finish(worker)


def test_memory_beside_a_pickle_arrives_aligned_and_may_be_changed(pool: WorkerPool[str]) -> None:
    sent = [np.arange(size, dtype=np.uint8) for size in (0, 1, 65, 200_001)]
    worker = pool.assign("a")
    worker.send(("arrays", sent))
    worker.send("a")
    (_, back), _ = pool.receive()[1][1], pool.finish(worker)
    for one, other in zip(sent, back, strict=True):
        assert one.tolist() == other.tolist()
        assert other.ctypes.data % 64 == 0 or not other.size
        other[:] = 0


@pytest.mark.parametrize(("how", "code"), [("exit", 3), ("fail", 1), ("interrupt", 0)])
def test_a_worker_that_ends_gives_its_job_back_and_is_replaced(pool: WorkerPool[str], how: str, code: int) -> None:
    dead = pool.assign(how)
    dead.send(how)
    assert pool.receive() == (dead, WorkerEnded(code))
    assert str(WorkerEnded(code)) == f"its worker process ended with code {code}"
    assert pool.finish(dead) == how
    assert pool.idle
    pool.fill()
    assert len(pool.workers) == 2
    assert dead not in pool.workers


def test_a_worker_that_dies_idle_costs_no_job(pool: WorkerPool[str]) -> None:
    pool.fill()
    idle, _ = pool.workers
    idle.process.kill()
    deadline = time.monotonic() + 30
    while idle in pool.workers:
        assert time.monotonic() < deadline, "nobody noticed"
        worker = pool.assign("a")
        assert worker is not idle
        worker.send("a")
        assert pool.receive()[1][2] == "a"
        pool.finish(worker)


def test_abandoned_workers_are_stopped_and_never_heard_again(pool: WorkerPool[str]) -> None:
    slow = pool.assign("sleep")
    slow.send("sleep")
    assert pool.receive()[1] == slow.process.pid
    slow.send("b")
    pool.abandon()
    assert slow.process.poll() is not None
    assert not pool.busy
    other = pool.assign("b")
    other.send("b")
    worker, _ = pool.receive()
    assert worker is other
    pool.finish(other)


def test_nothing_outlives_the_pool() -> None:
    with pool_of(2) as pool:
        pool.fill()
        processes = [worker.process for worker in pool.workers]
        first = pool.new_scratch()
        second = pool.new_scratch()
        assert not first.exists()
        assert second.is_dir()
    assert all(process.poll() is not None for process in processes)
    assert not second.exists()
    assert pool.workers == []


PARENT = """
import sys
sys.path.insert(0, sys.argv[1])
from test_workers import pool_of
with pool_of(1) as pool:
    pool.assign("sleep").send("sleep")
    print(pool.receive()[1], flush=True)
    pool.receive()
"""


def test_a_worker_at_work_dies_with_a_killed_parent() -> None:
    command = [sys.executable, "-c", PARENT, str(Path(__file__).parent)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
    deadline = time.monotonic() + 10
    while _running(pid):
        assert time.monotonic() < deadline, "the worker outlives its parent"
        time.sleep(0.05)


def _running(pid: int) -> bool:
    """A process whose parent is gone may stay as a zombie where nobody reaps it."""
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_pool_without_workers_is_refused() -> None:
    with pytest.raises(InputError, match="workers is 0: at least one is needed"):
        pool_of(0)


def test_each_worker_sees_its_own_gpu_and_a_replacement_that_of_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "devices_here", lambda: ("cpu", "cuda:0", "cuda:1"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with WorkerPool[str](2, echo, lambda: "hello", "cuda") as made:
        for job in ("exit", "gpu", "gpu"):
            worker = made.assign(job)
            worker.send(job)
            if job == "exit":
                lost = worker.number
                assert isinstance(made.receive()[1], WorkerEnded)
                made.finish(worker)
        assert lost == 0
        found = [made.receive() for _ in range(2)]
        assert {(worker.number, item[2]) for worker, item in found} == {(0, "0"), (1, "1")}
        made.abandon()
