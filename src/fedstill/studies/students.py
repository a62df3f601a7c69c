"""The second stage of a study: every run of the first teaches, by every objective and in every label mode listed.

A student inherits its teacher's data, points, augmentation and seed. Two values are special. The objective
`labels-only` is no distillation at all: the student learns from the labels, for comparison. And both label-free
controls are one computation (see `distillation.labels`), as is an objective that reads no labels anyway: a study runs
them once, as `withhold`, where the training loop has no labels to read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, product
from typing import Any

from fedstill.config import Experiment, make_experiment, overlay
from fedstill.config.recipes import Students
from fedstill.core.errors import InputError
from fedstill.distillation import objectives
from fedstill.methods.distill import DistillationSettings
from fedstill.studies.grid import Assignment, Cell, Value, called, check_conflicts, lay

OBJECTIVE, LABELS = "objective", "labels"
LABELS_ONLY = "labels-only"
INHERITED = ("data", "points", "augmentation", "seed", "validation")


def expand_students(
    students: Students,
    axes: Mapping[str, Sequence[Value]],
    teachers: Sequence[Cell],
    settings: Mapping[str, Any],
) -> Iterator[Cell]:
    """The students of every teacher that may teach, in the order written."""
    taught = [cell for cell in teachers if _chosen(cell, students.only)]
    if not taught:
        raise InputError(f"no teacher of the study has the labels {students.only}: nobody would be taught")
    for teacher in taught:
        inherited = {key: teacher.given[key] for key in INHERITED if key in teacher.given}
        for combination in product(*axes.values()):
            labels = {axis: value.label for axis, value in zip(axes, combination, strict=True)}
            alone = labels.get(OBJECTIVE) == LABELS_ONLY
            if alone and labels.get(LABELS, "use") != "use":
                continue  # there is nobody else to learn from
            whole = {**teacher.labels, **labels}
            try:
                check_conflicts(axes, combination)
                given = overlay({"method": "centralised" if alone else "distill"}, inherited, students.experiment)
                sets = [*chain.from_iterable(value.sets for value in combination)]
                given = lay(given, _without_teacher(sets) if alone else sets)
                given = lay(given, _without_teacher(settings.items()) if alone else settings.items())
                if not alone and _reads_no_labels(make_experiment(given)):
                    given = overlay(given, {"method": {"labels": "withhold"}})
                yield Cell(whole, given, make_experiment(given), None if alone else teacher)
            except InputError as error:
                raise InputError(f"the student {called(whole)}: {error}") from None


def _chosen(cell: Cell, only: Mapping[str, Sequence[str]]) -> bool:
    return all(cell.labels[axis] in labels for axis, labels in only.items())


def _reads_no_labels(experiment: Experiment) -> bool:
    """Whether labels or none make no difference to what is computed."""
    assert experiment.objective is not None
    assert isinstance(experiment.method.settings, DistillationSettings)
    objective = objectives[experiment.objective.name](experiment.objective.settings)
    mode = experiment.method.settings.labels
    return mode != "use" or "labels" not in objective.reads


def _without_teacher(sets: Iterable[Assignment]) -> list[Assignment]:
    """A labels-only student is trained as on pooled data: what it has no setting for does not concern it."""
    return [
        (key if key in Experiment.model_fields or key.endswith("?") else f"{key}?", value)
        for key, value in sets
        if key != OBJECTIVE
    ]
