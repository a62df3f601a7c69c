"""Object detectors for scenes, by name. They return `Predictions`, where classifiers return probabilities."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from fedstill.detection.model.detector import Detector, Part, part_of
from fedstill.detection.model.detector_sizes import (
    LITE,
    LITE_TURNED,
    MASKED,
    MASKED_TURNED,
    PAPER,
    SMALL_LITE,
    TURNED,
    DetectorSizes,
    PublishedSizes,
)
from fedstill.detection.model.predictions import Layer, Predictions, TokenPredictions
from fedstill.detection.model.published_detector import PublishedDetector
from fedstill.detection.point_features import COORDINATES, KNOWN_COLUMNS
from fedstill.models.builders import UnreadableShapeError, models, sized
from fedstill.models.cloud_parts import wants_points

__all__ = [
    "Detector",
    "DetectorSizes",
    "Layer",
    "Part",
    "Predictions",
    "PublishedDetector",
    "TokenPredictions",
    "part_of",
]

Builder = TypeVar("Builder", bound=Callable[..., Any])

_TRAINING: dict[str, Any] = {
    "optimiser": "adamw",
    "rate": 2e-3,
    "encoder_rate": 0.5,
    "weight_decay": 0.05,
    "clip": 0.1,
    "schedule": "cosine",
    "warmup": 2,
    "batch": 8,
}
_PAPER_TRAINING: dict[str, Any] = {**_TRAINING, "rate": 7e-4, "weight_decay": 0.1}


def detects(points: int, training: dict[str, Any]) -> Callable[[Builder], Builder]:
    """Declare that a builder's models detect boxes, their default number of points, and their training defaults."""

    def note(builder: Builder) -> Builder:
        builder.task = "detection"  # type: ignore[attr-defined]
        return wants_points(points, augmentation="scenes", training=training)(builder)

    return note


def feature_columns(shape: tuple[int, ...]) -> int:
    """The columns after the coordinates of a scene of that shape; refuses what is no scene."""
    if len(shape) != 2 or shape[0] < 1 or shape[1] not in KNOWN_COLUMNS:
        raise UnreadableShapeError("point clouds (points x 3; with height, colour or both, 4, 6 or 7)")
    return shape[1] - COORDINATES


@detects(50_000, _PAPER_TRAINING)
@models.register("detr3d", behaviour=3)
@sized(PAPER)
def detr3d(shape: tuple[int, ...], classes: int, sizes: PublishedSizes) -> PublishedDetector:
    """3DETR with prompts, for tens of thousands of points: set abstraction, six encoder and eight decoder layers."""
    return PublishedDetector(sizes, classes, "detr3d", channels=feature_columns(shape))


@detects(50_000, _PAPER_TRAINING)
@models.register("detr3d-turned", behaviour=3)
@sized(TURNED)
def detr3d_turned(shape: tuple[int, ...], classes: int, sizes: PublishedSizes) -> PublishedDetector:
    """The same detector for rotated boxes: it predicts headings, too."""
    return PublishedDetector(sizes, classes, "detr3d-turned", channels=feature_columns(shape))


@detects(50_000, _PAPER_TRAINING)
@models.register("detr3d-m", behaviour=3)
@sized(MASKED)
def detr3d_m(shape: tuple[int, ...], classes: int, sizes: PublishedSizes) -> PublishedDetector:
    """3DETR-m with prompts: three encoder layers in which tokens attend to nearby ones, and half as many tokens."""
    return PublishedDetector(sizes, classes, "detr3d-m", masked=True, channels=feature_columns(shape))


@detects(50_000, _PAPER_TRAINING)
@models.register("detr3d-m-turned", behaviour=3)
@sized(MASKED_TURNED)
def detr3d_m_turned(shape: tuple[int, ...], classes: int, sizes: PublishedSizes) -> PublishedDetector:
    """The detector with a masked encoder for rotated boxes: it predicts headings, too."""
    return PublishedDetector(sizes, classes, "detr3d-m-turned", masked=True, channels=feature_columns(shape))


@detects(2048, _TRAINING)
@models.register("detr3d-lite")
@sized(LITE)
def detr3d_lite(shape: tuple[int, ...], classes: int, sizes: DetectorSizes) -> Detector:
    """The detector for scenes of about two thousand points, for training on a CPU."""
    return Detector(sizes, classes, "detr3d-lite", channels=feature_columns(shape))


@detects(2048, _TRAINING)
@models.register("detr3d-lite-turned")
@sized(LITE_TURNED)
def detr3d_lite_turned(shape: tuple[int, ...], classes: int, sizes: DetectorSizes) -> Detector:
    """The detector for a CPU that predicts headings, too."""
    return Detector(sizes, classes, "detr3d-lite-turned", channels=feature_columns(shape))


@detects(2048, _TRAINING)
@models.register("small-detr3d-lite")
@sized(SMALL_LITE)
def small_detr3d_lite(shape: tuple[int, ...], classes: int, sizes: DetectorSizes) -> Detector:
    """The detector for a CPU at half the width, with fewer layers: the student."""
    return Detector(sizes, classes, "small-detr3d-lite", channels=feature_columns(shape))
