"""Live progress of a run or a study: one line in a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic
from typing import TYPE_CHECKING

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column

from fedstill.cli.screen import errors
from fedstill.core.numbers import count, duration, share, size
from fedstill.tasks.task_choice import ACCURACY, measure_of

if TYPE_CHECKING:  # a run need not load what studies are made of
    from fedstill.core.records import RoundRecord
    from fedstill.runtime.experiment import Experiment
    from fedstill.studies.jobs import JobOutcome
    from fedstill.studies.study_plan import Job
    from fedstill.studies.study_progress import StudyProgress

_WIDE = 110  # columns of a terminal that has room for everything
_BESIDE = 58  # columns that all but the name take at most where there is less room, with a short bar
_EVERY = 30.0  # seconds between lines where there is no terminal


def bar_of(unit: str, guesses: bool = True) -> Progress:
    """One line that counts units of work, with a `text` of its own and, if it `guesses`, the time left.

    Where the line is too long the bar gives way, and never the time; with little room a guess takes the place of the
    time so far.
    """
    whole = Column(no_wrap=True)
    left = (TextColumn("left"), TimeRemainingColumn(elapsed_when_finished=True, table_column=whole)) if guesses else ()
    so_far = () if guesses and not is_wide() else (TimeElapsedColumn(table_column=whole),)
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        TextColumn(f"{unit} {{task.completed:.0f}}/{{task.total:.0f}}"),
        TextColumn("{task.fields[text]}", markup=False),
        *so_far,
        *left,
        console=errors,
        transient=True,
    )


def is_wide() -> bool:
    return errors.width >= _WIDE


def fitting(name: str) -> str:
    """A name cut to what is left for it in the terminal."""
    room = max(errors.width - _BESIDE, 8)
    return name if len(name) <= room else f"{name[: room - 1]}…"


class BarDisplay:
    """What displays share: notes, warnings, and a bar in the terminal while something is computed."""

    def __init__(self, quiet: bool) -> None:
        self.quiet = quiet
        self.bar: Progress | None = None

    def note(self, text: str) -> None:
        if not self.quiet:
            errors.print(f"note: {text}", soft_wrap=True)

    def warn(self, text: str) -> None:
        errors.print(f"warning: {text}", soft_wrap=True)

    def close(self) -> None:
        """Remove the bar from the terminal, also after an interrupt."""
        if self.bar is not None:
            self.bar.stop()
            self.bar = None


class RunDisplay(BarDisplay):
    """An observer that draws one line in the terminal, of one run after the other; elsewhere it prints some lines."""

    def __init__(self, quiet: bool) -> None:
        super().__init__(quiet or not errors.is_terminal)
        self.prints = not quiet and self.quiet
        self.rounds = self.before = self.done = 0
        self.started = self.printed_at = 0.0
        self.found = True  # finished, until one starts
        self.up = self.down = 0
        self.accuracy: float | None = None
        self.measure = ACCURACY  # what that is called

    def note(self, text: str) -> None:
        if self.prints or not self.quiet:
            errors.print(f"note: {text}", soft_wrap=True)

    def start(self, experiment: Experiment, journal: Sequence[RoundRecord]) -> None:
        self.measure = measure_of(experiment.architectures[0])
        self.up, self.down, self.accuracy = 0, 0, None
        for record in journal:
            self._count(record)
        self.found = False
        self.rounds, self.before, self.done = experiment.rounds, len(journal), len(journal)
        self.started = self.printed_at = monotonic()
        if self.quiet:
            return
        self.bar = bar_of("round")
        name = fitting(f"{experiment.method.name} on {experiment.data}")
        self.bar.start()
        self.bar.add_task(name, total=experiment.rounds, completed=len(journal), text=self._text())

    def round(self, record: RoundRecord) -> None:
        self._count(record)
        if self.bar is not None:
            self.bar.update(self.bar.task_ids[0], advance=1, text=self._text())
        self.done += 1
        now = monotonic()
        if self.prints and now - self.printed_at >= _EVERY:
            self.printed_at = now
            left = (now - self.started) / (self.done - self.before) * (self.rounds - self.done)
            done = f"round {self.done}/{self.rounds}, {self.measure} {share(self.accuracy)}"
            errors.print(f"{done}, about {duration(left)} left", soft_wrap=True)

    def begun(self) -> str:
        """How much of the last run was there before this command; empty for a new one."""
        if self.found:
            return "finished before; nothing was done"
        return f"went on after round {self.before} of {self.rounds}" if self.before else ""

    def finish(self) -> None:
        self.close()

    def _count(self, record: RoundRecord) -> None:
        self.up += record.bytes.up
        self.down += record.bytes.down
        self.accuracy = record.metrics.get("accuracy", self.accuracy)

    def _text(self) -> str:
        traffic = f"  ↑{size(self.up)} ↓{size(self.down)}" if is_wide() else ""
        return f"{self.measure} {share(self.accuracy)}{traffic}"


class StudyDisplay(BarDisplay):
    """An observer of a study: one bar in a terminal, a line for every run elsewhere."""

    def __init__(self, quiet: bool) -> None:
        super().__init__(quiet)
        self.waited = False

    def start(self, progress: StudyProgress) -> None:
        if self.quiet or not progress.waiting:
            return
        if not errors.is_terminal:
            errors.print(f"{progress.total} runs, {progress.done} done{self._left(progress)}")
            return
        # The study knows better than a bar how long its runs will take.
        self.bar = bar_of("run", guesses=False)
        self.bar.start()
        text = self._left(progress).lstrip(", ")
        self.bar.add_task("study", total=progress.total, completed=progress.done, text=text)

    def settled(self, progress: StudyProgress, job: Job, outcome: JobOutcome) -> None:
        if self.quiet:
            return
        done = outcome.state == "done"
        measure = measure_of(job.experiment.architectures[0])
        how = f"{measure} {share(progress.accuracy.get(job))}" if done else f"{outcome.state}: {outcome.error}"
        notes = [outcome.note] if outcome.note else []
        if self.bar is not None:
            self.heard(progress)
            for text in [how, *notes] if outcome.state == "failed" else notes:
                self.bar.console.print(f"{job.cell}: {text}")
        else:
            errors.print(f"{progress.over}/{progress.total} {job.cell}: {how}{self._left(progress)}", soft_wrap=True)
            for text in notes:
                errors.print(f"{job.cell}: {text}", soft_wrap=True)

    def heard(self, progress: StudyProgress) -> None:
        if self.bar is not None:
            self.bar.update(self.bar.task_ids[0], completed=progress.progress, text=self._left(progress).lstrip(", "))

    def waiting(self, progress: StudyProgress, number: int) -> None:
        if not self.quiet and not self.waited:
            self.waited = True
            errors.print(f"another process is working on {count(number, 'run')}: waiting for that")

    def _left(self, progress: StudyProgress) -> str:
        left = progress.seconds_left()
        failed = f", {len(progress.failures)} failed" if progress.failures else ""
        return f"{failed}, about {duration(left)} left" if left is not None and progress.waiting else failed
