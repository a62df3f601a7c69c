"""How far a study has come, and how long the rest will take."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean
from typing import Protocol

from fedstill.studies.agenda import Job
from fedstill.studies.ledger import Ledger
from fedstill.studies.worker import Outcome


class Tally:
    """Runs that are done, that failed and that wait, and the times of those that are done, by method."""

    def __init__(self, ledger: Ledger, jobs: Sequence[Job], workers: int, retry_failed: bool = False) -> None:
        self.ledger, self.workers = ledger, workers
        self.total = len(jobs)
        self.failures: dict[Job, str] = {}
        self.waiting: dict[Job, None] = {}
        self.accuracy: dict[Job, float | None] = {}
        self._seconds: defaultdict[str, list[float]] = defaultdict(list)
        for job in jobs:
            error = None if retry_failed else ledger.failure(job.identity)
            if self._look_up(job):
                continue
            if error is not None:
                self.failures[job] = error
            else:
                self.waiting[job] = None

    @property
    def done(self) -> int:
        return len(self.accuracy)

    def settle(self, job: Job, outcome: Outcome) -> None:
        """A run has ended: remember how, here and in the folder."""
        self.waiting.pop(job, None)
        if outcome.state == "failed":
            self.failures[job] = outcome.error
            if self.ledger.failure(job.identity) != outcome.error:  # else another process has recorded it already
                self.ledger.record_failure(job, outcome.error, outcome.details)
        elif self._look_up(job):
            self.ledger.forget_failure(job.identity)

    def seconds_left(self) -> float | None:
        """From the times of finished runs, of the same method where there are any; None while nothing is known."""
        known = [second for seconds in self._seconds.values() for second in seconds]
        if not known:
            return None
        overall = fmean(known)
        each = [fmean(self._seconds[job.method]) if job.method in self._seconds else overall for job in self.waiting]
        return sum(each) / max(1, min(self.workers, len(each)))

    def _look_up(self, job: Job) -> bool:
        run = self.ledger.run(job.identity)
        if run is None:
            return False
        self.accuracy[job] = run.result["accuracy"].get("last")
        self._seconds[job.method].append(run.seconds)
        return True


class Watcher(Protocol):
    """Is told how a study goes; changes nothing."""

    def start(self, tally: Tally) -> None:
        """The study begins, or goes on."""

    def settled(self, tally: Tally, job: Job, outcome: Outcome) -> None:
        """A run has ended, well or not."""

    def waiting(self, tally: Tally, number: int) -> None:
        """Only runs are left that another process is working on."""
