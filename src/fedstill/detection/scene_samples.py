"""Sample scenes of a data set, as a contact sheet or as an interactive page."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedstill.core.errors import InputError, did_you_mean
from fedstill.data.bundle import Bundle
from fedstill.data.point_labels import shape_kinds
from fedstill.detection.scene_augmentation import turned
from fedstill.detection.scene_picture import draw_scenes
from fedstill.detection.scene_sets import scenes_of
from fedstill.detection.scene_viewer import draw_scene_turntable
from fedstill.detection.scenes import class_presence


def show_scenes(bundle: Bundle, wanted: str | None, count: int, path: Path, up: str = "z", turn: float = 0.0) -> None:
    """A few training scenes with their boxes, optionally those with a class of object, or of a type of room."""
    if up != "z":
        raise InputError(f"{bundle.name} holds scenes, in which z points up: leave --up out")
    rows, what = choose_scenes(bundle, wanted, count)
    scenes = scenes_of(bundle, bundle.train, rows)
    if turn:
        angles = torch.full((len(rows),), math.radians(turn), dtype=torch.float64)
        points, boxes = turned(scenes.points, scenes.boxes, angles)
        scenes = replace(scenes, points=points, boxes=boxes)
    boxes_of = f"boxes of {len(bundle.classes)} classes" if bundle.classes else "nobody labelled them"
    about = f"{what} · {bundle.shape[0]:,} points · {boxes_of}"
    if path.suffix.lower() == ".html":
        draw_scene_turntable(scenes, path, bundle.name, about)
    else:
        draw_scenes(scenes, range(len(rows)), path, f"{bundle.name} · {about}")


def choose_scenes(bundle: Bundle, wanted: str | None, count: int) -> tuple[Tensor, str]:
    """Rows of the training split, deterministic, with descriptions: from every type of room in turn."""
    if count < 1:
        raise InputError(f"--count must be at least 1, not {count}")
    labels = bundle.train.labels()
    if labels is None and wanted is not None:
        raise InputError(f"{bundle.name} has no labels to choose scenes by: leave --class out")
    kinds = torch.zeros(len(bundle.train), dtype=torch.int64) if labels is None else shape_kinds(bundle.train)
    fits, what = torch.ones(len(kinds), dtype=torch.bool), "training scenes"
    if wanted is not None and labels is not None:
        every = {name.lower(): name for name in (*bundle.classes, *bundle.categories)}
        if wanted.lower() not in every:
            raise InputError(f"there is no class {wanted!r}: {did_you_mean(wanted, every.values())}")
        name = every[wanted.lower()]
        if name in bundle.classes:
            holds = class_presence(labels, len(bundle.classes))
            fits, what = holds[:, bundle.classes.index(name)], f"training scenes with {name}"
        else:
            fits, what = kinds == bundle.categories.index(name), f"training scenes of type {name}"
    if not fits.any():
        raise InputError(f"{bundle.name} has no {what}")
    groups = [(fits & (kinds == kind)).nonzero().flatten() for kind in kinds[fits].unique().tolist()]
    chosen: list[int] = []
    for number, rows in enumerate(groups):
        share = min(len(rows), len(range(number, count, len(groups))))
        chosen += rows[torch.from_numpy(np.linspace(0, len(rows) - 1, share).round().astype(np.int64))].tolist()
    return torch.tensor(chosen), f"{len(chosen)} of {int(fits.sum()):,} {what}"
