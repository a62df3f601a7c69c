"""The task that fits given data or a given model, and the metric that ranks its rounds."""

from __future__ import annotations

from collections.abc import Mapping

from fedstill.core.errors import InputError
from fedstill.core.registry import Registry
from fedstill.data.data_kinds import data_kinds
from fedstill.models import models
from fedstill.models.model_settings import has_several_targets
from fedstill.tasks.classification import Classification

ACCURACY = "accuracy"  # ranks rounds if a task has no metric of its own

tasks: Registry[type[Classification]] = Registry("task")
tasks.register("classification")(Classification)
tasks.declare("fedstill.tasks.segmentation", "segmentation")
tasks.declare("fedstill.tasks.multilabel", "multilabel")


def task_kind(kind: str, points: bool, model: str, name: str, several: bool = False) -> type[Classification]:
    """The task for data of a kind; a model for another task is refused.

    Data and model must both be about points (`points`: every point has a label), boxes, or whole samples, of which
    each has one class, or `several` of them.
    """
    wanted = "segmentation" if points else "multilabel" if several else data_kinds[kind].task
    answered = task_name(model)
    if {wanted, answered} == {"classification", "multilabel"}:
        if several:
            raise InputError(f"{name} has several classes for a sample: set targets=several of model {model!r}")
        raise InputError(f"model {model!r} finds several classes, but {name} has one for each sample: set targets=one")
    if answered == wanted:
        return tasks[wanted]
    found = "classification" if several else wanted
    known = ", ".join(each for each in models.names() if task_name(each) == found)
    if tasks[wanted].finds_boxes:
        raise InputError(f"{name} holds scenes with boxes, which model {model!r} cannot find: choose one of {known}")
    if tasks[answered].finds_boxes:
        raise InputError(f"model {model!r} finds boxes in scenes, but {name} has none")
    if points:
        raise InputError(
            f"{name} has a label for every point, but model {model!r} says one thing of a cloud: choose one of {known}"
        )
    raise InputError(f"model {model!r} labels every point of a cloud, but {name} has one label for each sample")


def task_name(model: str) -> str:
    """The name of a model's task; a builder declares it as `task`."""
    named = str(getattr(models[model], "task", "classification"))
    return "multilabel" if named == "classification" and has_several_targets(model) else named


def task_of(model: str) -> type[Classification]:
    """The task of a model if there is no data: a finished run contains the name of its model."""
    return tasks[task_name(model)]


def own_measures() -> dict[str, str]:
    """The task-specific metrics beside accuracy, with their titles, and their variants."""
    found = {metric: title for name in tasks for metric, title in tasks[name].measures.items()}
    for name in tasks:
        for variant in tasks[name].variants:
            found |= {f"{variant}_{metric}": f"{variant} {title}" for metric, title in tasks[name].measures.items()}
    return found


def measures_of(model: str) -> Mapping[str, str]:
    """The metrics of a model's task; none for a model of a plugin that is not loaded, which counts as a classifier."""
    return task_of(model).measures if model in models else {}


def variants_of(model: str) -> tuple[str, ...]:
    """The other ways in which these are measured."""
    return task_of(model).variants if model in models else ()


def detects(model: str) -> bool:
    """Whether a model, by name, detects boxes in scenes; one of a plugin that is not loaded counts as a classifier."""
    return model in models and task_of(model).finds_boxes


def measure_of(model: str) -> str:
    """The name of the metric that ranks a model's rounds.

    >>> measure_of("cnn"), measure_of("detr3d-lite")
    ('accuracy', 'mAP@0.25')
    """
    return next(iter(measures_of(model).values()), ACCURACY)
