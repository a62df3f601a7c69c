"""The callbacks and the progress bar of a study that is started from Python."""

from __future__ import annotations

from typing import Protocol

from fedstill.core.notebook import NotebookBar, in_notebook
from fedstill.core.numbers import count, duration
from fedstill.core.views import view
from fedstill.runtime.callbacks import STUDY_HOOKS, CallbackInput, Callbacks
from fedstill.studies.jobs import JobOutcome
from fedstill.studies.study_plan import Job
from fedstill.studies.study_progress import StudyObserver, StudyProgress


class StudyCallbacks(Callbacks):
    """Callbacks of a study, as the observer that it calls."""

    def __init__(self, given: CallbackInput) -> None:
        super().__init__(given, STUDY_HOOKS, "on_run")
        self.waited = False

    def start(self, progress: StudyProgress) -> None:
        self.call("on_progress", progress)

    def settled(self, progress: StudyProgress, job: Job, outcome: JobOutcome) -> None:
        labels = tuple(job.cell.labels.values())
        run = progress.ledger.run(job) if outcome.state == "done" else None
        if run is not None:
            self.call("on_run", labels, run)
        else:
            self.call("on_failure", labels, outcome.error)
        if outcome.note:
            self.call("on_note", f"{job.cell}: {outcome.note}")
        self.call("on_progress", progress)

    def heard(self, progress: StudyProgress) -> None:
        """Not passed on: it happens inside of a run, which an exception would end."""

    def waiting(self, progress: StudyProgress, number: int) -> None:
        if not self.waited:
            self.waited = True
            self.call("on_note", f"another process is working on {count(number, 'run')}: waiting for that")


class StudyProgressDisplay(StudyObserver, Protocol):
    """An observer that is closed when the study has ended, however it ended."""

    def close(self) -> None:
        """Leave the output in a readable state."""


def study_display(progress: bool | None) -> StudyProgressDisplay | None:
    """The display for `progress`, where None means notebooks only; None: nothing is shown."""
    notebook = in_notebook()
    if not (notebook if progress is None else progress):
        return None
    if notebook:
        return NotebookStudyDisplay()
    made: StudyProgressDisplay = view("terminal display of a study")(quiet=False)
    return made


class NotebookStudyDisplay:
    """One bar in the notebook: runs, failures and the time left."""

    def __init__(self) -> None:
        self.bar = NotebookBar("study")

    def start(self, progress: StudyProgress) -> None:
        self.heard(progress)

    def settled(self, progress: StudyProgress, job: Job, outcome: JobOutcome) -> None:
        if outcome.state == "failed":
            self.bar.add_line(f"{job.cell}: {outcome.state}: {outcome.error}")
        if outcome.note:
            self.bar.add_line(f"{job.cell}: {outcome.note}")
        self.heard(progress)

    def heard(self, progress: StudyProgress) -> None:
        left = progress.seconds_left() if progress.waiting else None
        failed = f", {len(progress.failures)} failed" if progress.failures else ""
        text = f"{progress.done}/{progress.total} runs done{failed}"
        self.bar.show(progress.progress, progress.total, text + (f", about {duration(left)} left" if left else ""))

    def waiting(self, progress: StudyProgress, number: int) -> None:
        """The bar stands still until the other process is done."""

    def close(self) -> None:
        """Draw the last state, also of a study that ended early."""
        self.bar.draw()
