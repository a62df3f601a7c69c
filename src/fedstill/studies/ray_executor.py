"""An executor on Ray: every lesson is a task with one core, on whatever machine has one to spare.

The folder of runs is the store: a lesson's results, and how far it has come, are read there, so that only
configurations and outcomes travel. A worker that is lost, with or without its machine, is replaced a few times, and its
runs go on from their last round.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from time import time_ns
from types import TracebackType
from typing import Any, Self

import torch

from fedstill.core.files import writable_folder
from fedstill.engines.ray_connection import ONE_THREAD
from fedstill.runtime.joint_training import OnProgress
from fedstill.runtime.run_folder import folder_of
from fedstill.studies.executor import Given, Lesson, LessonTask
from fedstill.studies.jobs import JobOutcome, Place, forget_data, perform
from fedstill.studies.ray_cluster import arrive, check_machines, connected, find_ray, names_root, rooted
from fedstill.studies.status import RunStatus
from fedstill.studies.study_plan import Job

_log = logging.getLogger(__name__)

_PATIENCE = 1.0  # seconds between looks at how far lessons have come
_FAREWELL = 10.0  # seconds for tasks that are called off


class RayExecutor:
    """Does lessons on the cluster at that address, or on a Ray of its own."""

    def __init__(self, workers: int | None, address: str | None, place: Place) -> None:
        self.workers, self.address = workers, address
        self.place, self.named_root = rooted(place), names_root(place)
        self.size = 0
        self.busy: dict[Any, LessonTask] = {}  # by Ray's reference to the outcome
        self.journals = _Journals(Path(place.out))

    @property
    def idle(self) -> bool:
        return len(self.busy) < self.size

    @property
    def working(self) -> bool:
        return bool(self.busy)

    def start(self, lesson: Lesson, givens: Sequence[Given], told: OnProgress) -> None:
        self._submit(LessonTask(lesson, givens, told))

    def hear(self) -> tuple[Lesson, list[JobOutcome]]:
        while True:
            ready, _ = self.ray.wait(list(self.busy), timeout=_PATIENCE)
            for reference in ready:
                task = self.busy.pop(reference)
                outcomes = self._outcomes(reference, task)
                if outcomes is not None:
                    # A folder on a network is remembered as it was, for up to a minute, until something is changed.
                    writable_folder(Path(self.place.out))
                    return task.lesson, outcomes
            for task in self.busy.values():
                task.told(self.journals.share(task.lesson))

    def _submit(self, task: LessonTask) -> None:
        self.busy[self.remote.remote(list(task.givens), self.place, self.here, self.study)] = task

    def _outcomes(self, reference: Any, task: LessonTask) -> list[JobOutcome] | None:
        """How the runs ended; None where the lesson has been started again."""
        failures = self.ray.exceptions
        try:
            return task.noted([JobOutcome(**outcome) for outcome in self.ray.get(reference)])
        except failures.RayTaskError as error:  # not one of its runs, which are outcomes: a plugin, or the machine
            sentence = " ".join(f"{type(error.cause).__name__}: {error.cause}".split())
            ended = JobOutcome("failed", sentence, str(error))
            _log.info("a task on Ray failed", exc_info=True)
        except failures.RayError as error:
            _log.debug("a worker on Ray was lost", exc_info=True)
            why = f"its worker on Ray was lost ({type(error).__name__})"
            if (again := task.again(why)) is not None:
                self._submit(again)
                return None
            ended = task.given_up(why, str(error))
        return [ended] * len(task.lesson)

    def __enter__(self) -> Self:
        self.ray = find_ray()
        self.here, self.study = os.getcwd(), f"{os.getpid()} {time_ns()}"
        others = self.address is not None or self.ray.is_initialized()
        with ExitStack() as stack:
            self.size = stack.enter_context(connected(self.address, self.workers))
            stack.callback(self._call_off)
            if others:
                check_machines(self.place, self.named_root)
            self.remote = self.ray.remote(_learn).options(num_cpus=1, max_retries=0, runtime_env=ONE_THREAD)
            self.leaving = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leaving.close()

    def _call_off(self) -> None:
        """End what is still at work, after an interruption, and wait until it is gone."""
        left = list(self.busy)
        self.busy.clear()
        for reference in left:
            self.ray.cancel(reference, force=True)
        if left:
            self.ray.wait(left, num_returns=len(left), timeout=_FAREWELL)


class _Journals:
    """How far runs have come, as their folders tell."""

    def __init__(self, out: Path) -> None:
        self.out, self.ledger = out, RunStatus(out)
        self.found: dict[Job, Path] = {}

    def share(self, lesson: Lesson) -> float:
        rounds = sum(job.experiment.rounds for job in lesson)
        return sum(min(self._rounds(job), job.experiment.rounds) for job in lesson) / rounds

    def _rounds(self, job: Job) -> int:
        if job not in self.found:
            folder = folder_of(self.ledger.identity(job), self.out)
            if folder is None:
                return 0
            self.found[job] = folder / "journal.jsonl"
        try:
            return self.found[job].read_bytes().count(b"\n")
        except OSError:
            return 0


def _learn(givens: list[Given], place: Place, here: str, study: str) -> list[dict[str, Any]]:
    """A lesson, on the machine that does it."""
    arrive(here)
    _begin(study)
    torch.set_num_threads(1)
    place.own.install()
    return [asdict(outcome) for outcome in perform(givens, place)]


@lru_cache(maxsize=1)
def _begin(study: str) -> None:
    """Another study than the last one: files may have changed since. The cache is what remembers which it was."""
    forget_data()
