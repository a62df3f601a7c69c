"""The second stage of a study: every run of the first teaches, by every objective and in every label mode listed.

A student inherits its teacher's data, seed and validation share, and where nothing else is said its points and
augmentation. Two values are special. The objective `labels-only` has no teacher: such a student is the same run for
all teachers of a seed. And both label-free controls are one computation (see `distillation.labels`), as is an objective
that reads no labels anyway: a study runs them once, as `withhold`, where the training loop has no labels to read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, product
from typing import Any

from fedstill.core.errors import InputError, did_you_mean
from fedstill.distillation import Objective, objectives
from fedstill.distillation.proxy_data import DistillationSettings
from fedstill.runtime.assemble import make_experiment, overlay, section_of
from fedstill.runtime.experiment import Experiment
from fedstill.runtime.recipes import Students
from fedstill.studies.grid import GridCell, Taught, Value, called, check_conflicts, lay

INHERITED = ("data", "points", "augmentation", "seed", "validation")


def expand_students(
    students: Students,
    axes: Mapping[str, Sequence[Value]],
    teachers: Sequence[GridCell],
    settings: Mapping[str, Any],
) -> Iterator[GridCell]:
    """The students of every teacher that may teach, in the order written."""
    _check_only(students.only, teachers)
    method = section_of(students.experiment, "method") or {"name": "distill"}
    if method.get("name", "distill") != "distill":
        raise InputError(f"students are distilled, not trained by {method['name']}: leave `method` out")
    found = False
    for teacher in teachers:
        if not all(teacher.labels[axis] in labels for axis, labels in students.only.items()):
            continue
        inherited = {key: teacher.given[key] for key in INHERITED if key in teacher.given}
        for combination in product(*axes.values()):
            labels = {axis: value.label for axis, value in zip(axes, combination, strict=True)}
            whole = {**teacher.labels, **labels}
            try:
                check_conflicts(axes, combination)
                given = overlay({"method": "distill"}, inherited, students.experiment)
                given = lay(given, chain.from_iterable(value.sets for value in combination))
                cell = _student(whole, lay(given, settings.items()), teacher)
            except InputError as error:
                raise InputError(f"the student {called(whole)}: {error}") from None
            if cell is not None:
                found = True
                yield cell
    if not found:
        raise InputError("the study's `students` make no experiment: `labels-only` needs the label mode `use`")


def _student(labels: dict[str, str], given: dict[str, Any], teacher: GridCell) -> GridCell | None:
    """One student; None for a control of one that learns from nothing but labels."""
    experiment = make_experiment(given)
    settings = experiment.method.settings
    assert isinstance(settings, DistillationSettings)
    objective = objective_of(experiment)
    if not objective.least_teachers and settings.labels != "use":
        return None
    taught = Taught(objective.name, settings.labels, objective.hard_label_weight)
    if settings.labels != "use" or "labels" not in objective.reads:
        given = overlay(given, {"method": {"labels": "withhold"}})
        experiment = make_experiment(given)
    return GridCell(labels, given, experiment, teacher, taught)


def objective_of(experiment: Experiment) -> Objective:
    """As configured, label mode aside."""
    assert experiment.objective is not None
    return objectives[experiment.objective.name](experiment.objective.settings)


def _check_only(only: Mapping[str, Sequence[str]], teachers: Sequence[GridCell]) -> None:
    for axis, labels in only.items():
        known = {cell.labels[axis] for cell in teachers}
        for label in labels:
            if label not in known:
                raise InputError(f"only: no teacher's {axis} is {label!r}: {did_you_mean(label, known)}")
