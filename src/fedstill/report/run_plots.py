"""Figures of runs for Python and notebooks, in the style of the report."""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO

from matplotlib.figure import Figure as Canvas

from fedstill.core.errors import InputError
from fedstill.report.curves import accuracy_and_loss
from fedstill.report.facts import RunCourse
from fedstill.report.static import draw, words_as_they_are
from fedstill.runtime.result import Run


class RunFigure(Canvas):
    """A matplotlib figure that a notebook shows also where pyplot was never imported."""

    def _repr_png_(self) -> bytes:
        buffer = BytesIO()
        self.savefig(buffer, format="png", dpi=120, facecolor="white")
        return buffer.getvalue()


def plot_runs(runs: Mapping[str, Run]) -> Canvas:
    """Test accuracy and training loss over the rounds of runs, by title; they need not be finished."""
    courses = [RunCourse(title, run.experiment, tuple(run.journal)) for title, run in runs.items()]
    if not any(course.journal for course in courses):
        raise InputError("there is nothing to plot: no round was finished")
    with words_as_they_are():
        return draw(accuracy_and_loss(courses), RunFigure)
