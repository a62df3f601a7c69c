"""Who does the runs: this process one after another, a crew of worker processes, or a Ray cluster (`ray_crew`)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread
from types import TracebackType
from typing import Any, Protocol, Self

from fedstill.core.errors import InputError, did_you_mean
from fedstill.core.threads import child_environment, usable_cores
from fedstill.runtime.joint_training import OnProgress
from fedstill.studies.jobs import Outcome, Place, perform
from fedstill.studies.plan import Job

Lesson = Sequence[Job]  # done in one go
Given = Mapping[str, Any]

EXECUTORS = ("local", "ray")


class Executor(Protocol):
    """Does lessons, several at a time; entered before the first one, and left with nobody still working."""

    @property
    def size(self) -> int:
        """How many lessons it does at a time."""

    @property
    def idle(self) -> bool:
        """Whether somebody has nothing to do."""

    @property
    def working(self) -> bool:
        """Whether there is something to hear of."""

    def start(self, lesson: Lesson, givens: Sequence[Given], told: OnProgress) -> None:
        """Have somebody idle do these runs; what comes of it is heard of later."""

    def hear(self) -> tuple[Lesson, list[Outcome]]:
        """The next lesson that is over, and how its runs ended."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def executor_size(workers: int | None, executor: str = "local", cores: int | None = None) -> int:
    """At most one worker for each core, that may be used here if no others are given: more would only take turns.

    Where nobody says how many, one on this machine, and on Ray as many as there are cores.
    """
    cores = cores or usable_cores()
    wanted = workers if workers is not None else cores if executor == "ray" else 1
    if wanted < 1:
        raise InputError(f"workers is {wanted}: at least one is needed")
    return min(wanted, cores)


def check_executor(executor: str, address: str | None, device: str) -> None:
    """Refuse what does not go together, whatever there is on this machine."""
    if executor not in EXECUTORS:
        raise InputError(f"unknown executor {executor!r}: {did_you_mean(executor, EXECUTORS)}")
    if executor == "local" and address is not None:
        raise InputError("an address is that of a Ray cluster: add --executor ray, or leave --address out")
    if executor == "ray" and device != "cpu":
        raise InputError("studies on Ray run on the cpu: leave --device out, or --executor ray")


def executor_maker(executor: str, workers: int | None, address: str | None, device: str) -> Callable[[Place], Executor]:
    """Who will do the runs, once there is a place for them; what cannot work is refused now."""
    check_executor(executor, address, device)
    size = executor_size(workers, executor)
    if executor == "local":
        return partial(LocalExecutor, size)
    from fedstill.studies.ray_cluster import check_address, find_ray
    from fedstill.studies.ray_executor import RayExecutor

    find_ray()
    check_address(address)
    return partial(RayExecutor, workers, address)


class LocalExecutor:
    """Does lessons, one for each worker at a time; with a single worker there is no other process."""

    def __init__(self, size: int, place: Place) -> None:
        self.size, self.place = size, place
        self.workers: list[_Worker] = []
        self.busy: dict[_Worker, tuple[Lesson, OnProgress]] = {}
        self.inbox: SimpleQueue[tuple[_Worker, str | None]] = SimpleQueue()
        self.done: list[tuple[Lesson, list[Outcome]]] = []  # by this process

    @property
    def idle(self) -> bool:
        return not self.done if self.size == 1 else len(self.busy) < self.size

    @property
    def working(self) -> bool:
        return bool(self.done or self.busy)

    def start(self, lesson: Lesson, givens: Sequence[Given], told: OnProgress) -> None:
        if self.size == 1:
            self.done.append((lesson, perform(givens, self.place, told)))
            return
        worker = next((one for one in self.workers if one not in self.busy), None) or self._hire()
        self.busy[worker] = lesson, told
        worker.send(json.dumps(list(givens)))

    def hear(self) -> tuple[Lesson, list[Outcome]]:
        if self.done:
            return self.done.pop()
        while True:
            with suppress(Empty):  # a wait without end would not hear the keyboard on every system
                worker, answer = self.inbox.get(timeout=1.0)
                news = None if answer is None else json.loads(answer)
                if worker not in self.busy:
                    if news is None and worker in self.workers:  # died between two lessons
                        self.workers.remove(worker)
                elif isinstance(news, list):
                    return self.busy.pop(worker)[0], [Outcome(**outcome) for outcome in news]
                elif news is None:
                    self.workers.remove(worker)
                    lesson, _ = self.busy.pop(worker)
                    ended = Outcome("failed", f"its worker process ended with code {worker.process.wait()}")
                    return lesson, [ended] * len(lesson)
                else:
                    self.busy[worker][1](float(news))

    def _hire(self) -> _Worker:
        worker = _Worker(self.place, self.inbox)
        self.workers.append(worker)
        return worker

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self.workers:
            worker.stop()
        self.workers.clear()


class _Worker:
    """A worker process and the thread that listens to it."""

    def __init__(self, place: Place, inbox: SimpleQueue[tuple[_Worker, str | None]]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", "from fedstill.studies.jobs import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=child_environment(),
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.requests, self.answers = self.process.stdin, self.process.stdout
        Thread(target=self._listen, args=(inbox,), daemon=True).start()
        self.send(json.dumps(asdict(place)))

    def send(self, line: str) -> None:
        with suppress(BrokenPipeError):  # it has died: its listener says so
            self.requests.write(line + "\n")
            self.requests.flush()

    def _listen(self, inbox: SimpleQueue[tuple[_Worker, str | None]]) -> None:
        with suppress(OSError, ValueError):
            for line in self.answers:
                inbox.put((self, line))
        inbox.put((self, None))

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        self.answers.close()
        with suppress(BrokenPipeError):
            self.requests.close()
