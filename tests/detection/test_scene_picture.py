from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedstill.core.errors import InputError
from fedstill.detection.scene_picture import draw_scenes
from fedstill.detection.scenes import Scenes


def test_a_scene_is_drawn_with_its_boxes(rooms: Scenes, tmp_path: Path) -> None:
    """With boxes there is colour; without any, only grey."""
    bare = replace(rooms, classes=torch.full_like(rooms.classes, -1))
    colourful = []
    for name, scenes in (("boxes", rooms), ("bare", bare)):
        draw_scenes(scenes, [0], tmp_path / f"{name}.png", title="rooms")
        pixels = np.asarray(Image.open(tmp_path / f"{name}.png").convert("HSV"))
        colourful.append(float((pixels[:, :, 1] > 120).mean()))
    assert colourful[0] > 0.005 > colourful[1]


def test_bad_input_is_refused(rooms: Scenes, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"name a \.png file"):
        draw_scenes(rooms, [0], tmp_path / "scene.gif")
    with pytest.raises(InputError, match="there are scenes 0 to 39: cannot draw 40"):
        draw_scenes(rooms, [40], tmp_path / "scene.png")
    with pytest.raises(InputError, match="cannot be written"):
        draw_scenes(rooms, [0], tmp_path / "nowhere" / "scene.png")
