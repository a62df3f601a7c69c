"""Which task fits some data, which a model's answers are for, and how tables call the number that ranks its rounds."""

from __future__ import annotations

from collections.abc import Mapping

from fedstill.core.errors import InputError
from fedstill.core.registry import Registry
from fedstill.data.data_kinds import data_kinds
from fedstill.models import models
from fedstill.tasks.classification import Classification

ACCURACY = "accuracy"  # what ranks rounds where a task has no measure of its own

tasks: Registry[type[Classification]] = Registry("task")
tasks.register("classification")(Classification)
tasks.declare("fedstill.tasks.segmentation", "segmentation")


def task_kind(kind: str, points: bool, model: str, name: str) -> type[Classification]:
    """The task that data of a kind poses; a model that answers another question is refused.

    Both must be about points (`points`: every one has a label), about boxes, or about whole samples.
    """
    wanted = "segmentation" if points else data_kinds[kind].task
    answered = task_name(model)
    if answered == wanted:
        return tasks[wanted]
    known = ", ".join(each for each in models.names() if task_name(each) == wanted)
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
    """The task that a model's answers are for, by name; a builder notes it as `task`."""
    return str(getattr(models[model], "task", "classification"))


def task_of(model: str) -> type[Classification]:
    """The task that a model's answers are for, where there is no data to ask: a finished run knows its model."""
    return tasks[task_name(model)]


def own_measures() -> dict[str, str]:
    """Metrics that some tasks have beside accuracy, and how they are called."""
    return {metric: title for name in tasks for metric, title in tasks[name].measures.items()}


def measures_of(model: str) -> Mapping[str, str]:
    """Those of a model's task; none of a plugin's model that is not loaded, which counts as a classifier."""
    return task_of(model).measures if model in models else {}


def detects(model: str) -> bool:
    """Whether a model, by name, finds boxes in scenes; one of a plugin that is not loaded counts as a classifier."""
    return model in models and task_of(model).finds_boxes


def measure_of(model: str) -> str:
    """The name of what ranks a model's rounds.

    >>> measure_of("cnn"), measure_of("detr3d-lite")
    ('accuracy', 'mAP@0.25')
    """
    return next(iter(measures_of(model).values()), ACCURACY)
