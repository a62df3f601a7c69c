"""Shared parts of point-cloud models: number of points, input shape and head."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch import nn

from fedstill.models.builders import UnreadableShapeError

Builder = TypeVar("Builder", bound=Callable[..., Any])


def wants_points(points: int, **defaults: Any) -> Callable[[Builder], Builder]:
    """Declare a builder's default number of points per cloud and its default training settings."""

    def note(builder: Builder) -> Builder:
        builder.points = points  # type: ignore[attr-defined]
        builder.defaults = defaults  # type: ignore[attr-defined]
        return builder

    return note


def cloud_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """`shape` as (points, 3); refuses other shapes."""
    if len(shape) != 2 or shape[0] < 1 or shape[1] != 3:
        raise UnreadableShapeError("point clouds (points x 3)")
    return shape[0], shape[1]


def cloud_channels(shape: tuple[int, ...]) -> tuple[int, int]:
    """`shape` as (points, channels), for models that read normals behind coordinates; refuses other shapes."""
    if len(shape) != 2 or shape[0] < 1 or shape[1] not in (3, 6):
        raise UnreadableShapeError("point clouds (points x 3), or with normals (points x 6)")
    return shape[0], shape[1]


def mlp_head(features: int, first: int, second: int, classes: int, dropout: float) -> nn.Sequential:
    """Two hidden layers with BatchNorm, ReLU and Dropout, then logits."""
    return nn.Sequential(
        nn.Linear(features, first),
        nn.BatchNorm1d(first),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(first, second),
        nn.BatchNorm1d(second),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(second, classes),
    )
