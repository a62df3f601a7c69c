"""An interactive page of scenes with their true boxes."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedstill.core.errors import InputError
from fedstill.detection.scene_figure import Box, SceneView, scene_figure
from fedstill.detection.scene_picture import scene_name
from fedstill.detection.scenes import Scenes
from fedstill.report.page import PageSection
from fedstill.report.pictures.viewer_page import write_samples_page

_MOST = 12  # scenes of a page: each has many points
_POINTS = 10_000  # of a scene


def draw_scene_turntable(scenes: Scenes, path: Path, name: str, about: str = "") -> None:
    """One scene at a time, selected by a menu; boxes and the points in them have the colour of their class."""
    if len(scenes) > _MOST:
        raise InputError(f"a page shows up to {_MOST} scenes, not {len(scenes)}: lower --count, or draw a .png")
    views = [_view(scenes, row) for row in range(len(scenes))]
    figure = scene_figure(
        "scenes",
        "Scenes" if len(views) > 1 else views[0].name,
        views,
        (),
        scenes.class_names,
        looks="classes",
        sentence=f"The points of {len(views)} scenes and the boxes around things in them.",
        most=_POINTS,
    )
    write_samples_page(path, name, f"{about}.", [PageSection("scenes", "Scenes", [figure])])


def _view(scenes: Scenes, row: int) -> SceneView:
    boxes, labels = scenes.boxes_of(row)
    truth = [Box(box, kind) for box, kind in zip(boxes.tolist(), labels.tolist(), strict=True)]
    return SceneView(scene_name(scenes, row), scenes.points[row].double().numpy().astype(np.float64), truth)
