"""What the number that ranks rounds, `accuracy`, really is in each task, as tables and figures call it."""

from __future__ import annotations

from collections.abc import Mapping

from fedstill.models import models
from fedstill.tasks.task_choice import task_of, tasks

ACCURACY = "accuracy"


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
