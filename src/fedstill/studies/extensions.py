"""What slices add to studies: figures of a run beside the usual ones, and a table of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fedstill.core.registry import Registry

if TYPE_CHECKING:
    from fedstill.core.table import Table
    from fedstill.runtime.experiment import Experiment
    from fedstill.runtime.result import Run
    from fedstill.studies.results import Labels, Results
    from fedstill.studies.run_figures import Figures
    from fedstill.studies.study_plan import Job

Metric = tuple[str, str, float]  # what it is, its unit, and the factor by which it is shown


@dataclass(frozen=True)
class PlannedRun:
    """A cell of a study that has a run: its labels, its experiment as written, and the job that runs it."""

    labels: Labels
    experiment: Experiment
    job: Job


Finished = Callable[["Job"], "Run | None"]
FiguresOf = Callable[[PlannedRun, "Run", Finished], "Figures"]


@dataclass(frozen=True)
class StudyFigures:
    """Figures that some runs have. `make` sees all planned runs, since a run may be compared with another one."""

    make: Callable[[Sequence[PlannedRun]], FiguresOf]
    metrics: Mapping[str, Metric] = field(default_factory=dict)


@dataclass(frozen=True)
class StudyTable:
    """A table that takes the place of the accuracies', for results that it applies to."""

    name: str  # under which it stands in JSON
    applies: Callable[[Results], bool]
    make: Callable[[Results], Table | None]
    make_parts: Callable[[Results], Mapping[tuple[str, ...], Table]]  # the same, narrow enough for a terminal


study_figures: Registry[StudyFigures] = Registry("figures of a study")
study_tables: Registry[StudyTable] = Registry("table of a study")


def table_for(results: Results) -> StudyTable | None:
    """The table that a slice has for such results."""
    return next((study_tables[name] for name in study_tables if study_tables[name].applies(results)), None)
