"""Scenes as a kind of data: clouds of whole rooms with boxes, for which detectors are trained."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fedstill.data.bundle import Bundle
from fedstill.data.clouds import FEWEST_POINTS
from fedstill.data.data_kinds import DataKind, data_kinds
from fedstill.data.file_sources import FromFiles
from fedstill.data.layout import Samples
from fedstill.data.readers.raw import FileFindings
from fedstill.detection.point_features import columns_with
from fedstill.detection.scene_files import ScenesFromFiles, holds_scenes


def _reader(path: Path) -> FromFiles | None:
    return ScenesFromFiles("Scenes of your own.") if holds_scenes(path) else None


def _show(bundle: Bundle, wanted: str | None, count: int, path: Path, up: str, turn: float) -> None:
    from fedstill.detection.scene_samples import show_scenes

    show_scenes(bundle, wanted, count, path, up, turn)


def _find_doubts(splits: Mapping[str, Samples], found: FileFindings) -> None:
    from fedstill.detection.scene_doubts import find_scene_doubts

    find_scene_doubts(splits, found)


def _with_features(bundle: Bundle, features: tuple[str, ...]) -> Bundle:
    from fedstill.detection.scene_features import with_features

    return with_features(bundle, features)


data_kinds.register("scene")(
    DataKind(
        "detection",
        "detr3d-lite",
        {"augmentation": "scenes", "rounds": 40, "training": {"epochs": 2, "batch": 8}},
        points=True,
        fewest_points=FEWEST_POINTS,
        reader=_reader,
        show=_show,
        find_doubts=_find_doubts,
        with_features=_with_features,
        columns=columns_with,
    )
)
