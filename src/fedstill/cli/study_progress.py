"""How far a study is: one bar in a terminal, a line for every run elsewhere."""

from __future__ import annotations

from rich.progress import Progress

from fedstill.cli.progress import bar_of
from fedstill.cli.screen import errors
from fedstill.core.numbers import count, duration, share
from fedstill.studies.jobs import Outcome
from fedstill.studies.plan import Job
from fedstill.studies.progress import StudyProgress
from fedstill.tasks.measures import measure_of


class StudyDisplay:
    """An observer of a study; where it should be quiet it says nothing."""

    def __init__(self, quiet: bool) -> None:
        self.quiet = quiet
        self.bar: Progress | None = None
        self.waited = False

    def start(self, tally: StudyProgress) -> None:
        if self.quiet or not tally.waiting:
            return
        if not errors.is_terminal:
            errors.print(f"{tally.total} runs, {tally.done} done{self._left(tally)}")
            return
        # The study knows better than a bar how long its runs will take.
        self.bar = bar_of("run", guesses=False)
        self.bar.start()
        self.bar.add_task("study", total=tally.total, completed=tally.done, told=self._left(tally).lstrip(", "))

    def settled(self, tally: StudyProgress, job: Job, outcome: Outcome) -> None:
        if self.quiet:
            return
        done = outcome.state == "done"
        measure = measure_of(job.experiment.architectures[0])
        how = f"{measure} {share(tally.accuracy.get(job))}" if done else f"{outcome.state}: {outcome.error}"
        if self.bar is not None:
            self.heard(tally)
            if outcome.state == "failed":
                self.bar.console.print(f"{job.cell}: {how}")
        else:
            errors.print(f"{tally.over}/{tally.total} {job.cell}: {how}{self._left(tally)}", soft_wrap=True)

    def heard(self, tally: StudyProgress) -> None:
        if self.bar is not None:
            self.bar.update(self.bar.task_ids[0], completed=tally.progress, told=self._left(tally).lstrip(", "))

    def waiting(self, tally: StudyProgress, number: int) -> None:
        if not self.quiet and not self.waited:
            self.waited = True
            errors.print(f"another process is working on {count(number, 'run')}: waiting for that")

    def close(self) -> None:
        """Give the terminal back, also when the study was interrupted."""
        if self.bar is not None:
            self.bar.stop()
            self.bar = None

    def _left(self, tally: StudyProgress) -> str:
        left = tally.seconds_left()
        failed = f", {len(tally.failures)} failed" if tally.failures else ""
        return f"{failed}, about {duration(left)} left" if left is not None and tally.waiting else failed
