"""Who does the runs: this process one after another, worker processes, or a Ray cluster (`ray_executor`)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import Any, Protocol, Self

from fedstill.core.errors import InputError, did_you_mean
from fedstill.core.hardware import usable_cores
from fedstill.engines.workers import ATTEMPTS, WorkerEnded, WorkerPool
from fedstill.runtime.joint_training import OnProgress
from fedstill.studies.jobs import JobOutcome, Place, perform, perform_lessons
from fedstill.studies.study_plan import Job

_log = logging.getLogger(__name__)

Lesson = Sequence[Job]  # done in one go
Given = Mapping[str, Any]

EXECUTORS = ("local", "ray")


@dataclass(frozen=True)
class LessonTask:
    """A lesson at work; a worker that is lost is replaced a few times, and its runs go on from their last round."""

    lesson: Lesson
    givens: Sequence[Given]
    told: OnProgress
    lost: int = 0  # workers, so far
    why: str = ""  # the last one

    def again(self, why: str) -> LessonTask | None:
        """The lesson for another worker, after one was lost; None for one that ends every worker."""
        runs = " and ".join(str(job.cell) for job in self.lesson)
        _log.info("%s: %s (attempt %d of %d)", runs, why, self.lost + 1, ATTEMPTS)
        return replace(self, lost=self.lost + 1, why=why) if self.lost + 1 < ATTEMPTS else None

    def given_up(self, why: str, details: str = "") -> JobOutcome:
        return JobOutcome("failed", f"{why}, in each of {ATTEMPTS} attempts", details)

    def noted(self, outcomes: Sequence[JobOutcome]) -> list[JobOutcome]:
        """The outcomes, with a note of the workers that were lost on the way."""
        note = f"{self.why}: the run went on in another one" if self.lost else ""
        return [replace(one, note=note) for one in outcomes]


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

    def hear(self) -> tuple[Lesson, list[JobOutcome]]:
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
        self.pool: WorkerPool[LessonTask] = WorkerPool(size, perform_lessons, lambda: place, place.device)
        self.done: list[tuple[Lesson, list[JobOutcome]]] = []  # by this process

    @property
    def idle(self) -> bool:
        return not self.done if self.size == 1 else self.pool.idle

    @property
    def working(self) -> bool:
        return bool(self.done or self.pool.busy)

    def start(self, lesson: Lesson, givens: Sequence[Given], told: OnProgress) -> None:
        if self.size == 1:
            self.done.append((lesson, perform(givens, self.place, told)))
            return
        self._assign(LessonTask(lesson, givens, told))

    def hear(self) -> tuple[Lesson, list[JobOutcome]]:
        if self.done:
            return self.done.pop()
        while True:
            worker, received = self.pool.receive()
            if isinstance(received, float):
                self.pool.busy[worker].told(received)
                continue
            task = self.pool.finish(worker)
            if not isinstance(received, WorkerEnded):
                return task.lesson, task.noted(received)
            if (again := task.again(str(received))) is None:
                return task.lesson, [task.given_up(str(received))] * len(task.lesson)
            self._assign(again)

    def _assign(self, task: LessonTask) -> None:
        self.pool.assign(task).send(list(task.givens))

    def __enter__(self) -> Self:
        self.pool.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.pool.__exit__(kind, error, trace)
