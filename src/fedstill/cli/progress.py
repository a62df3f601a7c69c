"""Live progress: round, accuracy, traffic, time left. Without a terminal, a plain line now and then."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column

from fedstill.cli.screen import errors
from fedstill.core.numbers import duration, share, size
from fedstill.core.records import RoundRecord
from fedstill.runtime.experiment import Experiment
from fedstill.tasks.measures import ACCURACY, measure_of

_WIDE = 110  # columns of a terminal that has room for everything
_BESIDE = 58  # columns that all but the name take at most where there is less room, with a short bar
_EVERY = 30.0  # seconds between lines where there is no terminal


def bar_of(unit: str, guesses: bool = True) -> Progress:
    """One line that counts units of work, with what was told last (`told`), and, if it `guesses`, the time left.

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
        TextColumn("{task.fields[told]}", markup=False),
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


class Display:
    """An observer that draws one line in the terminal, of one run after the other; elsewhere it prints some lines."""

    def __init__(self, quiet: bool) -> None:
        self.quiet = quiet or not errors.is_terminal
        self.prints = not quiet and self.quiet
        self.rounds = self.before = self.done = 0
        self.started = self.told_at = 0.0
        self.found = True  # finished, until one starts
        self.up = self.down = 0
        self.accuracy: float | None = None
        self.measure = ACCURACY  # what that is called
        self.bar: Progress | None = None

    def start(self, experiment: Experiment, journal: Sequence[RoundRecord]) -> None:
        self.measure = measure_of(experiment.architectures[0])
        self.up, self.down, self.accuracy = 0, 0, None
        for record in journal:
            self._count(record)
        self.found = False
        self.rounds, self.before, self.done = experiment.rounds, len(journal), len(journal)
        self.started = self.told_at = monotonic()
        if self.quiet:
            return
        self.bar = bar_of("round")
        name = fitting(f"{experiment.method.name} on {experiment.data}")
        self.bar.start()
        self.bar.add_task(name, total=experiment.rounds, completed=len(journal), told=self._told())

    def round(self, record: RoundRecord) -> None:
        self._count(record)
        if self.bar is not None:
            self.bar.update(self.bar.task_ids[0], advance=1, told=self._told())
        self.done += 1
        now = monotonic()
        if self.prints and now - self.told_at >= _EVERY:
            self.told_at = now
            left = (now - self.started) / (self.done - self.before) * (self.rounds - self.done)
            told = f"round {self.done}/{self.rounds}, {self.measure} {share(self.accuracy)}"
            errors.print(f"{told}, about {duration(left)} left", soft_wrap=True)

    def begun(self) -> str:
        """How much of the last run was there before; nothing of a new one."""
        if self.found:
            return "finished before; nothing was done"
        return f"went on after round {self.before} of {self.rounds}" if self.before else ""

    def note(self, text: str) -> None:
        if not self.quiet:
            errors.print(f"note: {text}", soft_wrap=True)

    def warn(self, text: str) -> None:
        errors.print(f"warning: {text}", soft_wrap=True)

    def finish(self) -> None:
        self.close()

    def close(self) -> None:
        """Give the terminal back, also when the run was interrupted."""
        if self.bar is not None:
            self.bar.stop()
            self.bar = None

    def _count(self, record: RoundRecord) -> None:
        self.up += record.bytes.up
        self.down += record.bytes.down
        self.accuracy = record.metrics.get("accuracy", self.accuracy)

    def _told(self) -> str:
        traffic = f"  ↑{size(self.up)} ↓{size(self.down)}" if is_wide() else ""
        return f"{self.measure} {share(self.accuracy)}{traffic}"
