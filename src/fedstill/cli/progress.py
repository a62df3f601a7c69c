"""Live progress: round, accuracy, traffic, time left. Quiet where there is no terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fedstill.cli.screen import errors
from fedstill.config import Experiment
from fedstill.core.numbers import share, size
from fedstill.tasks.measures import ACCURACY, measure_of


def bar_of(unit: str, guesses: bool = True) -> Progress:
    """One line that counts units of work, with what was told last (`told`), and, if it `guesses`, the time left."""
    left = (TextColumn("left"), TimeRemainingColumn(elapsed_when_finished=True)) if guesses else ()
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        TextColumn(f"{unit} {{task.completed:.0f}}/{{task.total:.0f}}"),
        TextColumn("{task.fields[told]}", markup=False),
        TimeElapsedColumn(),
        *left,
        console=errors,
        transient=True,
    )


class Display:
    """An observer that draws one line in the terminal, of one run after the other."""

    def __init__(self, quiet: bool) -> None:
        self.quiet = quiet or not errors.is_terminal
        self.up = self.down = 0
        self.accuracy: float | None = None
        self.measure = ACCURACY  # what that is called
        self.bar: Progress | None = None

    def start(self, experiment: Experiment, journal: Sequence[dict[str, Any]]) -> None:
        self.measure = measure_of(experiment.architectures[0])
        self.up, self.down, self.accuracy = 0, 0, None
        for record in journal:
            self._count(record)
        if self.quiet:
            return
        self.bar = bar_of("round")
        name = f"{experiment.method.name} on {experiment.data}"
        self.bar.start()
        self.bar.add_task(name, total=experiment.rounds, completed=len(journal), told=self._told())

    def round(self, record: dict[str, Any]) -> None:
        self._count(record)
        if self.bar is not None:
            self.bar.update(self.bar.task_ids[0], advance=1, told=self._told())

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

    def _count(self, record: dict[str, Any]) -> None:
        self.up += record["bytes"]["up"]
        self.down += record["bytes"]["down"]
        self.accuracy = record.get("metrics", {}).get("accuracy", self.accuracy)

    def _told(self) -> str:
        return f"{self.measure} {share(self.accuracy)}  ↑{size(self.up)} ↓{size(self.down)}"
