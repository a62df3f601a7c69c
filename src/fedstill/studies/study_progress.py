"""How far a study has come, and how long the rest will take."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Protocol

from fedstill.studies.jobs import JobOutcome
from fedstill.studies.status import RunStatus
from fedstill.studies.study_plan import Job


class StudyProgress:
    """Runs that are done, that failed, that cannot be and that wait; and the times of those that are done."""

    def __init__(
        self,
        ledger: RunStatus,
        jobs: Sequence[Job],
        workers: int,
        retry_failed: bool = False,
        estimates: Mapping[Job, float] | None = None,
    ) -> None:
        self.ledger, self.workers, self.retry_failed = ledger, workers, retry_failed
        self.estimates = estimates if estimates and all(job in estimates for job in jobs) else {}
        self.total = len(jobs)
        self.failures: dict[Job, str] = {}
        self.refused: dict[Job, str] = {}
        self.waiting: dict[Job, None] = {}
        self.accuracy: dict[Job, float | None] = {}
        self.halfway: dict[Job, float] = {}  # of those being worked on, how much is over
        self._seconds: defaultdict[str, list[float]] = defaultdict(list)  # for one epoch, or one estimated
        for job in jobs:
            if self._look_up(job):
                continue
            if (before := self.settled(job)) is not None:
                self._lists(before)[job] = before.error
            else:
                self.waiting[job] = None

    @property
    def done(self) -> int:
        return len(self.accuracy)

    @property
    def over(self) -> int:
        """Runs of which nothing is left to do."""
        return self.done + len(self.failures) + len(self.refused)

    @property
    def progress(self) -> float:
        """The same, with parts of those being worked on."""
        return self.over + sum(self.halfway.values())

    def settled(self, job: Job) -> JobOutcome | None:
        """What is known of a job that nobody should start: it is done, or there is no use."""
        if self.ledger.run(job) is not None:
            return JobOutcome("done")
        before = self.ledger.failure(job)
        if before is None or (self.retry_failed and before.state == "failed"):
            return None
        return before

    def settle(self, job: Job, outcome: JobOutcome) -> None:
        """A run has ended: remember how, here and in the folder."""
        self.waiting.pop(job, None)
        self.halfway.pop(job, None)
        if outcome.state == "done" and not self._look_up(job):
            outcome = JobOutcome(
                "failed", "it is done, but not where it should be: its data may have changed meanwhile"
            )
        if outcome.state in ("failed", "refused"):
            self._lists(outcome)[job] = outcome.error
            self.ledger.record_failure(job, outcome)
        else:
            self.ledger.forget_failure(job)

    def seconds_left(self) -> float | None:
        """From the times of finished runs, of the same method where there are any; None while nothing is known.

        What was estimated is corrected by what runs really took, which tells of workers that share the processor.
        """
        known = [second for seconds in self._seconds.values() for second in seconds]
        if not known and not self.estimates:
            return None
        overall = fmean(known) if known else 1.0
        each = [
            (1 - self.halfway.get(job, 0.0))
            * self._size(job)
            * (fmean(self._seconds[job.method]) if job.method in self._seconds else overall)
            for job in self.waiting
        ]
        return sum(each) / max(1, min(self.workers, len(each)))

    def _size(self, job: Job) -> float:
        """How long a run is beside others: what was estimated, else its epochs."""
        return self.estimates.get(job) or job.epochs

    def _lists(self, outcome: JobOutcome) -> dict[Job, str]:
        return self.refused if outcome.state == "refused" else self.failures

    def _look_up(self, job: Job) -> bool:
        run = self.ledger.run(job)
        if run is None:
            return False
        self.accuracy[job] = run.result.accuracy.get("last")
        self._seconds[job.method].append(run.seconds / self._size(job))
        return True


class StudyObserver(Protocol):
    """Receives a study's progress; changes nothing."""

    def start(self, tally: StudyProgress) -> None:
        """The study begins, or goes on."""

    def settled(self, tally: StudyProgress, job: Job, outcome: JobOutcome) -> None:
        """A run has ended, well or not."""

    def heard(self, tally: StudyProgress) -> None:
        """Some of the runs being worked on have come further."""

    def waiting(self, tally: StudyProgress, number: int) -> None:
        """Only runs are left that another process is working on."""
