"""Defaults of an experiment that depend on the kind of data and the model."""

from __future__ import annotations

from typing import Any

from fedstill.core.dataset import has_several_labels
from fedstill.core.errors import InputError
from fedstill.core.protocols import Method
from fedstill.data.bundle import Bundle
from fedstill.data.data_kinds import data_kinds
from fedstill.data.point_labels import has_point_labels
from fedstill.methods import methods
from fedstill.models import models
from fedstill.models.model_settings import with_several_targets
from fedstill.runtime.assemble import overlay, with_defaults
from fedstill.runtime.experiment import Experiment
from fedstill.runtime.input_statistics import with_statistics
from fedstill.tasks.task_choice import task_kind

POINT_MODEL = "pointnet2-segmentation-lite"  # where every point of a cloud has a label


def resolve(experiment: Experiment, bundle: Bundle) -> tuple[Experiment, Bundle]:
    """Fill in unset fields from data and model, and prepare the data for it."""
    points = has_point_labels(bundle.train)
    several = has_several_labels(bundle.train)
    experiment = settled(experiment, bundle.kind, points, bundle.shape[0], several)
    if experiment.partition.name == "sites" and bundle.sites:
        experiment = with_defaults(experiment, {"clients": bundle.sites})
    if experiment.points is not None and not data_kinds[bundle.kind].points and experiment.model is not None:
        task_kind(bundle.kind, points, experiment.model, experiment.data, several)  # which refuses a detector
    experiment = with_statistics(experiment, bundle)
    return experiment, prepared(experiment, bundle)


def prepared(experiment: Experiment, bundle: Bundle) -> Bundle:
    """The data as models of a settled experiment read it: its number of points, and their features."""
    bundle = bundle if experiment.points is None else bundle.with_points(experiment.points)
    return bundle.with_features(point_features(experiment))


def point_features(experiment: Experiment) -> tuple[str, ...]:
    """The features of points that the sections of an experiment ask for."""
    return tuple(name for section in experiment.sections().values() for name in section.point_features())


def settled(
    experiment: Experiment, kind: str, point_labels: bool, points: int, several_labels: bool = False
) -> Experiment:
    """The experiment with model, points, training and augmentation, for data of a kind, with clouds of so many points.

    Where the data is not here, those who have it say these four things of it.
    """
    of_points = data_kinds[kind].points
    if not of_points and experiment.points is not None:
        raise InputError(f"{experiment.data} holds {kind}s: leave `points` out")
    model = experiment.model or next(iter(experiment.models), POINT_MODEL if point_labels else None)
    decided = decided_by(kind, model, methods[experiment.method.name])
    if kind == "array":  # read as they are, e.g. points with normals
        decided.pop("points", None)
    if of_points:
        decided["points"] = min(decided.get("points", points), points)
    experiment = with_defaults(experiment, decided)
    if not several_labels:
        return experiment
    each = {
        "model": None if experiment.model is None else with_several_targets(experiment.model),
        "models": {with_several_targets(model): count for model, count in experiment.models.items()},
    }
    return experiment.model_copy(update=each)


def decided_by(kind: str, model: str | None, method: type[Method]) -> dict[str, Any]:
    """Defaults from the kind of data, from the method for that kind, and from the model."""
    model = model or data_kinds[kind].model
    builder = models[model]
    own = getattr(builder, "defaults", {})
    points = {"points": builder.points} if hasattr(builder, "points") else {}
    return {"model": model, **points, **overlay(data_kinds[kind].defaults, method.defaults_by_kind.get(kind, {}), own)}
