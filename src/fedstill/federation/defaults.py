"""What the kind of data and the model decide of an experiment, where nobody else did."""

from __future__ import annotations

from typing import Any

from fedstill.config import Experiment, overlay, with_defaults
from fedstill.core.errors import InputError
from fedstill.core.protocols import Method
from fedstill.data.bundle import Bundle
from fedstill.data.parts import has_point_labels
from fedstill.methods import methods
from fedstill.models import models

DEFAULT_MODELS = {"image": "cnn", "cloud": "pointnet2-lite", "scene": "detr3d-lite"}
POINT_MODEL = "pointnet2-segmentation-lite"  # where every point of a cloud has a label
DEFAULTS: dict[str, dict[str, Any]] = {
    "image": {"augmentation": "none"},
    # The settings of the point-cloud literature: Adam, weight decay, and clouds that are dropped, scaled and shifted.
    "cloud": {
        "augmentation": "points",
        "rounds": 20,
        "training": {"epochs": 5, "optimiser": "adam", "rate": 1e-3, "weight_decay": 1e-4, "batch": 24},
    },
    "scene": {"augmentation": "scenes", "rounds": 40, "training": {"epochs": 2, "batch": 8}},
}


def resolve(experiment: Experiment, bundle: Bundle) -> tuple[Experiment, Bundle]:
    """Fill in what the data and the model decide where the user did not; and clouds with as many points as decided."""
    experiment = settled(experiment, bundle.kind, has_point_labels(bundle.train), bundle.shape[0])
    return experiment, bundle if experiment.points is None else bundle.with_points(experiment.points)


def settled(experiment: Experiment, kind: str, point_labels: bool, points: int) -> Experiment:
    """The experiment with model, points, training and augmentation, for data of a kind, with clouds of so many points.

    Where the data is not here, those who have it say these three things of it.
    """
    if kind == "image" and experiment.points is not None:
        raise InputError(f"{experiment.data} holds images: leave `points` out")
    model = experiment.model or next(iter(experiment.models), POINT_MODEL if point_labels else None)
    decided = decided_by(kind, model, methods[experiment.method.name])
    if kind != "image":
        decided["points"] = min(decided.get("points", points), points)
    return with_defaults(experiment, decided)


def decided_by(kind: str, model: str | None, method: type[Method]) -> dict[str, Any]:
    """What the kind of data, the method for that kind, and the model decide where nobody else does."""
    model = model or DEFAULT_MODELS[kind]
    builder = models[model]
    own = getattr(builder, "defaults", {})
    points = {"points": builder.points} if hasattr(builder, "points") else {}
    return {"model": model, **points, **overlay(DEFAULTS[kind], method.defaults_by_kind.get(kind, {}), own)}
