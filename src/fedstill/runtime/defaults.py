"""Defaults of an experiment that depend on the kind of data and the model."""

from __future__ import annotations

from typing import Any

from fedstill.core.errors import InputError
from fedstill.core.protocols import Method
from fedstill.data.bundle import Bundle
from fedstill.data.data_kinds import data_kinds
from fedstill.data.point_labels import has_point_labels
from fedstill.methods import methods
from fedstill.models import models
from fedstill.runtime.assemble import overlay, with_defaults
from fedstill.runtime.experiment import Experiment
from fedstill.tasks.task_choice import task_kind

POINT_MODEL = "pointnet2-segmentation-lite"  # where every point of a cloud has a label


def resolve(experiment: Experiment, bundle: Bundle) -> tuple[Experiment, Bundle]:
    """Fill in unset fields from data and model, and reduce clouds to the resulting number of points."""
    points = has_point_labels(bundle.train)
    experiment = settled(experiment, bundle.kind, points, bundle.shape[0])
    if experiment.points is not None and not data_kinds[bundle.kind].points and experiment.model is not None:
        task_kind(bundle.kind, points, experiment.model, experiment.data)  # which refuses a detector
    return experiment, bundle if experiment.points is None else bundle.with_points(experiment.points)


def settled(experiment: Experiment, kind: str, point_labels: bool, points: int) -> Experiment:
    """The experiment with model, points, training and augmentation, for data of a kind, with clouds of so many points.

    Where the data is not here, those who have it say these three things of it.
    """
    of_points = data_kinds[kind].points
    if not of_points and experiment.points is not None:
        raise InputError(f"{experiment.data} holds {kind}s: leave `points` out")
    model = experiment.model or next(iter(experiment.models), POINT_MODEL if point_labels else None)
    decided = decided_by(kind, model, methods[experiment.method.name])
    if of_points:
        decided["points"] = min(decided.get("points", points), points)
    return with_defaults(experiment, decided)


def decided_by(kind: str, model: str | None, method: type[Method]) -> dict[str, Any]:
    """Defaults from the kind of data, from the method for that kind, and from the model."""
    model = model or data_kinds[kind].model
    builder = models[model]
    own = getattr(builder, "defaults", {})
    points = {"points": builder.points} if hasattr(builder, "points") else {}
    return {"model": model, **points, **overlay(data_kinds[kind].defaults, method.defaults_by_kind.get(kind, {}), own)}
