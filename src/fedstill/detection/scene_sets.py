"""Scenes as data sets: the columns for training a detector, and the built-in rooms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from fedstill.core.dataset import Dataset
from fedstill.data.bundle import Bundle, Source, datasets
from fedstill.data.file_sources import bundled
from fedstill.data.layout import BoxSamples, Samples
from fedstill.detection.cloud_files import FileSamples
from fedstill.detection.point_features import split_columns
from fedstill.detection.rooms.room_cache import kept_rooms
from fedstill.detection.scenes import NOBODY, Scenes

TRAINING_ROOMS, TEST_ROOMS = 1000, 200


def scene_samples(splits: Mapping[str, Scenes]) -> dict[str, Samples]:
    """Scenes by split, padded to the same number of boxes.

    Inputs are clouds in metres; padding rows of labels and boxes are -1 and zeros; unknown types of rooms are 0.
    """
    most = max(scenes.classes.shape[1] for scenes in splits.values())
    return {part: _samples(scenes, most - scenes.classes.shape[1]) for part, scenes in splits.items()}


def _samples(scenes: Scenes, room: int) -> BoxSamples:
    made = BoxSamples(
        scenes.points,
        F.pad(scenes.classes, (0, room), value=NOBODY),
        "scene",
        names=scenes.names,
        category=scenes.kinds.clamp(min=0),
        categories=scenes.kind_names,
        boxes=F.pad(scenes.boxes, (0, 0, 0, room)),
        sources=scenes.sources,
    )
    return FileSamples(**vars(made), files=scenes.files) if scenes.files else made


def scene_bundle(name: str, splits: Mapping[str, Scenes]) -> Bundle:
    """Scenes of the same classes and the same number of points, by split, as a bundle."""
    notes = tuple(note for scenes in splits.values() for note in scenes.notes)
    return bundled(name, scene_samples(splits), next(iter(splits.values())).class_names, notes)


def scenes_of(bundle: Bundle, data: Dataset, rows: Tensor) -> Scenes:
    """Some rows of a split as scenes again; unlabelled ones have no boxes."""
    batch = data.batch(rows)
    nothing = torch.full((len(rows), 1), NOBODY)
    return Scenes(
        split_columns(batch["inputs"])[0],
        batch.get("boxes", torch.zeros(len(rows), 1, 7)),
        batch.get("labels", nothing) if "boxes" in batch else nothing,
        batch["category"] if "category" in batch and bundle.categories else torch.full((len(rows),), NOBODY),
        bundle.classes,
        bundle.categories,
        tuple(f"scene {number}" for number in batch["sample_id"].tolist()),
    )


def some_scenes(scenes: Scenes, rows: Tensor) -> Scenes:
    """The scenes of these numbers."""
    return replace(
        scenes,
        points=scenes.points if scenes.files else scenes.points[rows],
        boxes=scenes.boxes[rows],
        classes=scenes.classes[rows],
        kinds=scenes.kinds[rows],
        names=tuple(scenes.names[row] for row in rows.tolist()) if scenes.names else (),
        files=tuple(scenes.files[row] for row in rows.tolist()) if scenes.files else (),
        sources=tuple(scenes.sources[row] for row in rows.tolist()) if scenes.sources else (),
    )


@datasets.register("rooms")
def rooms(source: Source) -> Bundle:
    """Furnished rooms of five types as depth cameras see them: 1,200 scenes with boxes of ten classes, built in."""
    every = kept_rooms(TRAINING_ROOMS + TEST_ROOMS)
    train, test = torch.arange(len(every)).split([TRAINING_ROOMS, TEST_ROOMS])
    return scene_bundle(source.name, {"train": some_scenes(every, train), "test": some_scenes(every, test)})
