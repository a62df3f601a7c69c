"""The scheduler: teachers before their students, students jointly, nothing that another process works on."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from fedstill.studies.executor import Lesson
from fedstill.studies.jobs import JobOutcome
from fedstill.studies.study_plan import Job, lessons
from fedstill.studies.study_progress import StudyObserver, StudyProgress

_log = logging.getLogger(__name__)


class Scheduler:
    """The groups of jobs that are left: `next` takes one that can be started, `returned` records its outcomes."""

    def __init__(self, tally: StudyProgress, observers: Sequence[StudyObserver], parts: int = 1) -> None:
        self.tally, self.observers = tally, observers
        self.ledger = tally.ledger
        # Students first: once a teacher is there, its students tell how long the rest will take.
        self.left: list[Lesson] = [*lessons(tally.waiting, parts)]
        self.left.sort(key=lambda lesson: lesson[0].teacher is None)
        self.elsewhere: list[Job] = []
        _log.info("%d runs: %d to do, the others are reused", tally.total, len(tally.waiting))

    def next(self) -> Lesson | None:
        """A group whose teacher is finished and that no other process works on; None if there is none now."""
        for lesson in list(self.left):
            if not self._ready(lesson[0]):
                continue
            self.left.remove(lesson)
            if mine := [job for job in lesson if self._wanted(job)]:
                for job in mine:
                    _log.info("%s: started", _named(job))
                return mine
        return None

    def givens(self, lesson: Lesson) -> list[Mapping[str, Any]]:
        """The configurations to run, with the folders of their teachers."""
        givens: list[Mapping[str, Any]] = []
        for job in lesson:
            teacher = None if job.teacher is None else self.ledger.run(job.teacher)
            givens.append(job.given(None if teacher is None else teacher.path))
        return givens

    def returned(self, lesson: Lesson, outcomes: Sequence[JobOutcome]) -> None:
        for job, outcome in zip(lesson, outcomes, strict=True):
            # Two that begin a run in the same instant can be in each other's way before one has the lock.
            if outcome.state == "busy" or (outcome.state == "failed" and self.ledger.busy(job)):
                self.elsewhere.append(job)
                self.tally.halfway.pop(job, None)
            else:
                _log.info("%s: %s%s", _named(job), outcome.state, outcome.error and f": {outcome.error}")
                self._settle(job, outcome)

    def revisit(self) -> None:
        """Put jobs that other processes were working on back into the queue."""
        self.left += list(lessons(self.elsewhere))
        self.elsewhere = []

    def _ready(self, job: Job) -> bool:
        return self.ledger.identity(job) is not None or self.tally.settled(job) is not None

    def _wanted(self, job: Job) -> bool:
        """Whether a job still has to be run: another process may have finished it."""
        if (known := self.tally.settled(job)) is not None:
            _log.info("%s: reused (%s)", _named(job), known.state)
            self._settle(job, known)
            return False
        if self.ledger.busy(job):
            _log.info("%s: another process is working on it", _named(job))
            self.elsewhere.append(job)
            return False
        return True

    def _settle(self, job: Job, outcome: JobOutcome) -> None:
        self.tally.settle(job, outcome)
        for observer in self.observers:
            observer.settled(self.tally, job, outcome)


def _named(job: Job) -> str:
    """The labels of a job's cell, for log lines."""
    return ", ".join(f"{axis} {label}" for axis, label in job.cell.labels.items()) or job.key
