"""Object detectors for scenes, by name. They return `Predictions`, where classifiers return probabilities."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from fedstill.detection.model.detector import Detector, Part, part_of
from fedstill.detection.model.detector_sizes import LITE, LITE_TURNED, PAPER, SMALL_LITE, TURNED, DetectorSizes
from fedstill.detection.model.predictions import Layer, Predictions, TokenPredictions
from fedstill.models.builders import models, sized
from fedstill.models.cloud_parts import cloud_shape, wants_points

__all__ = ["Detector", "DetectorSizes", "Layer", "Part", "Predictions", "TokenPredictions", "part_of"]

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


@detects(50_000, _PAPER_TRAINING)
@models.register("detr3d")
@sized(PAPER)
def detr3d(shape: tuple[int, ...], classes: int, sizes: DetectorSizes) -> Detector:
    """3DETR-style detector for tens of thousands of points: set abstraction, encoder with prompts, decoder."""
    cloud_shape(shape)
    return Detector(sizes, classes, "detr3d")


@detects(50_000, _PAPER_TRAINING)
@models.register("detr3d-turned")
@sized(TURNED)
def detr3d_turned(shape: tuple[int, ...], classes: int, sizes: DetectorSizes) -> Detector:
    """The same detector for rotated boxes: it predicts headings, too."""
    cloud_shape(shape)
    return Detector(sizes, classes, "detr3d-turned")


@detects(2048, _TRAINING)
@models.register("detr3d-lite")
@sized(LITE)
def detr3d_lite(shape: tuple[int, ...], classes: int, sizes: DetectorSizes) -> Detector:
    """The detector for scenes of about two thousand points, for training on a CPU."""
    cloud_shape(shape)
    return Detector(sizes, classes, "detr3d-lite")


@detects(2048, _TRAINING)
@models.register("detr3d-lite-turned")
@sized(LITE_TURNED)
def detr3d_lite_turned(shape: tuple[int, ...], classes: int, sizes: DetectorSizes) -> Detector:
    """The detector for a CPU that predicts headings, too."""
    cloud_shape(shape)
    return Detector(sizes, classes, "detr3d-lite-turned")


@detects(2048, _TRAINING)
@models.register("small-detr3d-lite")
@sized(SMALL_LITE)
def small_detr3d_lite(shape: tuple[int, ...], classes: int, sizes: DetectorSizes) -> Detector:
    """The detector for a CPU at half the width, with fewer layers: the student."""
    cloud_shape(shape)
    return Detector(sizes, classes, "small-detr3d-lite")
