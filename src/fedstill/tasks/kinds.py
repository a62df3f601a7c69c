"""Which task fits some data, and which a model's answers are for."""

from __future__ import annotations

from fedstill.core.errors import InputError
from fedstill.models import models
from fedstill.tasks.classification import Classification
from fedstill.tasks.detection import Detection
from fedstill.tasks.segmentation import Segmentation


def task_kind(kind: str, points: bool, model: str, name: str) -> type[Classification]:
    """The task that fits data of a kind, by name; a model that answers another question than the data asks is refused.

    Both must be about points (`points`: every one has a label), about boxes in scenes, or about whole samples.
    """
    boxes = kind == "scene"
    wanted: type[Classification] = Detection if boxes else Segmentation if points else Classification
    fits = [each for each in models.names() if task_of(each) is wanted]
    if model in fits:
        return wanted
    known = ", ".join(fits)
    if boxes:
        raise InputError(f"{name} holds scenes with boxes, which model {model!r} cannot find: choose one of {known}")
    if task_of(model) is Detection:
        raise InputError(f"model {model!r} finds boxes in scenes, but {name} has none")
    if points:
        raise InputError(
            f"{name} has a label for every point, but model {model!r} says one thing of a cloud: choose one of {known}"
        )
    raise InputError(f"model {model!r} labels every point of a cloud, but {name} has one label for each sample")


def task_of(model: str) -> type[Classification]:
    """The task that a model's answers are for, where there is no data to ask: a finished run knows its model."""
    builder = models[model]
    if getattr(builder, "detects", False):
        return Detection
    return Segmentation if getattr(builder, "labels_points", False) else Classification
