"""The runs of a study in trackers: as one group, each when it has ended, from its journal."""

from __future__ import annotations

from fedstill.runtime.result import Run
from fedstill.runtime.run_folder import folder_of
from fedstill.studies.jobs import JobOutcome
from fedstill.studies.study_plan import Job
from fedstill.studies.study_progress import StudyProgress
from fedstill.tracking.tracking import RunFollower, Tracking, tracked_run


class TrackedStudy:
    """An observer of a study. Its runs may be computed by other processes: what counts are their folders.

    Runs that were there before are tracked, too, unless they are in the store already.
    """

    def __init__(self, tracking: Tracking, title: str) -> None:
        self.tracking, self.title = tracking, title

    def start(self, tally: StudyProgress) -> None:
        for job in tally.accuracy:
            self._finished(tally, job)

    def settled(self, tally: StudyProgress, job: Job, outcome: JobOutcome) -> None:
        if outcome.state == "done":
            self._finished(tally, job)
        elif outcome.state == "failed":
            self._failed(tally, job)

    def heard(self, tally: StudyProgress) -> None:
        """Rounds are handed on when their run has ended."""

    def waiting(self, tally: StudyProgress, number: int) -> None:
        """Not tracked."""

    def _finished(self, tally: StudyProgress, job: Job) -> None:
        run = tally.ledger.run(job)
        if run is not None and self.tracking.active:
            self._follower(run, job).finished(run.path, run.journal)

    def _failed(self, tally: StudyProgress, job: Job) -> None:
        """What it had done before, if anything."""
        path = folder_of(tally.ledger.identity(job), tally.ledger.out)
        if path is not None and self.tracking.active:
            follower = self._follower(Run(path), job)
            follower.catch_up(Run(path).journal)
            follower.close("failed")

    def _follower(self, run: Run, job: Job) -> RunFollower:
        return RunFollower(self.tracking, tracked_run(run.path, run.config, self.title, job.cell.labels))
