"""The progress of a run that is started from Python: a bar in notebooks, elsewhere the command line's, if asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from time import monotonic
from typing import Protocol

from fedstill.core.notebook import NotebookBar, curve, in_notebook, time_left
from fedstill.core.numbers import share
from fedstill.core.records import RoundRecord
from fedstill.core.views import view
from fedstill.runtime.callbacks import CallbackInput, RunCallbacks, former_observers
from fedstill.runtime.experiment import Experiment
from fedstill.runtime.observers import Observer
from fedstill.runtime.result import Run
from fedstill.tasks.task_choice import ACCURACY, measure_of

_POINTS = 400  # of the curve in a notebook


class ProgressDisplay(Observer, Protocol):
    """An observer that is closed when the run has ended, however it ended."""

    def close(self) -> None:
        """Leave the output in a readable state."""


def run_display(progress: bool | None) -> ProgressDisplay | None:
    """The display for `progress`, where None means notebooks only; None: nothing is shown."""
    notebook = in_notebook()
    if not (notebook if progress is None else progress):
        return None
    if notebook:
        return NotebookRunDisplay()
    made: ProgressDisplay = view("terminal display of a run")(quiet=False)
    return made


def watched(
    work: Callable[[Sequence[Observer]], Run],
    callbacks: CallbackInput,
    progress: bool | None = None,
    observers: Sequence[Observer] | None = None,
) -> Run:
    """Do a run that calls observers: with callbacks, a display of its progress, and observers as of 0.2."""
    watching = RunCallbacks(callbacks)
    former = former_observers(observers)
    display = run_display(progress)
    shown: list[Observer] = [] if display is None else [display]
    with nullcontext() if display is None else closing(display):
        return watching.watch(lambda: work([*shown, watching, *former]))


class NotebookRunDisplay:
    """One bar in the notebook: rounds, accuracy and the time left, with the accuracy by round as a curve below it."""

    def __init__(self) -> None:
        self.bar = NotebookBar()
        self.measure = ACCURACY
        self.accuracy: float | None = None
        self.course: list[float | None] = []  # its accuracy by evaluated round
        self.before = self.done = self.rounds = 0
        self.started = 0.0

    def start(self, experiment: Experiment, journal: Sequence[RoundRecord]) -> None:
        self.bar.name = f"{experiment.method.name} on {experiment.data}"
        self.measure = measure_of(experiment.architectures[0])
        self.before, self.done, self.rounds = len(journal), len(journal), experiment.rounds
        self.started = monotonic()
        self.course = []
        for record in journal:
            self._keep(record)
        self._show()

    def round(self, record: RoundRecord) -> None:
        self.done = record.round
        self._keep(record)
        self._show()

    def note(self, text: str) -> None:
        self.bar.add_line(f"note: {text}")

    def warn(self, text: str) -> None:
        self.bar.add_line(f"warning: {text}")

    def finish(self) -> None:
        """The last round has drawn the full bar."""

    def close(self) -> None:
        """Draw a run that ended early as far as it came."""
        if self.done < self.rounds:
            self.bar.text = f"{self._state()}, stopped"
            self.bar.draw()

    def _keep(self, record: RoundRecord) -> None:
        if "accuracy" in record.metrics:
            self.accuracy = record.metrics["accuracy"]
            self.course.append(self.accuracy)
            if len(self.course) > _POINTS:
                self.course = self.course[1::2]

    def _show(self) -> None:
        self.bar.figure = curve(self.course, f"{self.measure} by round, {share(self.accuracy)} last")
        left = time_left(monotonic() - self.started, self.done - self.before, self.rounds - self.before)
        self.bar.show(self.done, self.rounds, ", ".join(filter(None, [self._state(), left])))

    def _state(self) -> str:
        return f"round {self.done}/{self.rounds}, {self.measure} {share(self.accuracy)}"
