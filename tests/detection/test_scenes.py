"""Scenes put together and refused; corners and insides of boxes by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedstill.core.errors import InputError
from fedstill.detection.scenes import Scene, class_presence, corners, inside, stack

NAMES = ("chair", "table")
BOX = [0.0, 0.0, 0.5, 1.0, 2.0, 1.0, 0.0]


def scene(**changes: Any) -> Scene:
    parts: dict[str, Any] = {
        "points": np.random.default_rng(0).normal(size=(80, 3)),
        "boxes": np.array([BOX]),
        "classes": np.array([1]),
        "where": "a.npy",
    }
    return Scene(**{**parts, **changes})


def test_scenes_are_filled_up_to_the_most_boxes() -> None:
    empty = scene(boxes=np.zeros((0, 7)), classes=np.zeros(0, np.int64))
    two = scene(boxes=np.array([BOX, BOX]), classes=np.array([0, 1]), kind=1, name="two")
    scenes = stack([scene(), empty, two], NAMES, ("kitchen", "hall"))
    assert len(scenes) == 3
    assert scenes.classes.tolist() == [[1, -1], [-1, -1], [0, 1]]
    assert scenes.boxes.shape == (3, 2, 7)
    assert (scenes.boxes[1] == 0).all()
    assert scenes.kinds.tolist() == [-1, -1, 1]
    assert scenes.names == ("a.npy", "a.npy", "two")
    assert class_presence(scenes.classes, 2).tolist() == [[False, True], [False, False], [True, True]]
    boxes, labels = scenes.boxes_of(0)
    assert torch.equal(boxes, torch.tensor([BOX]))
    assert labels.tolist() == [1]
    assert len(scenes.boxes_of(1)[0]) == 0
    assert stack([empty], NAMES, most=5).boxes.shape == (1, 5, 7)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"points": np.zeros((80, 4))}, r"a.npy: a cloud must be \(points, 3\), not \(80, 4\)"),
        ({"points": np.zeros((63, 3))}, "a.npy has 63 points: a scene needs at least 64"),
        ({"points": np.full((80, 3), np.nan)}, "a.npy has points that are not finite"),
        ({"boxes": np.zeros((1, 6))}, r"1 boxes must be 7 numbers each, not \(1, 6\)"),
        ({"boxes": np.array([[np.inf, *BOX[1:]]])}, "a.npy: box 0 has numbers that are not finite"),
        ({"boxes": np.array([[0, 0, 0, 1, 0, 1, 0.0]])}, "a.npy: box 0 has sizes 1, 0, 1: all three must be above 0"),
        ({"boxes": np.array([[0, 0, 0, 1, 2, -1, 0.0]]), "labelled": "b.npy"}, "b.npy: box 0 has sizes 1, 2, -1"),
        ({"classes": np.array([2])}, "a.npy: box 0 is of class 2, and classes are 0 to 1"),
        ({"classes": np.array([-1])}, "a.npy: box 0 is of class -1"),
    ],
    ids=range(9),
)
def test_what_nobody_can_learn_from_is_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        stack([scene(), scene(**changes)], NAMES)


def test_clouds_must_be_of_one_size() -> None:
    with pytest.raises(InputError, match="b has 90 points where others have 80"):
        stack([scene(), scene(points=np.zeros((90, 3)), where="b")], NAMES)


def test_a_turned_box_by_hand() -> None:
    """2 x 1 x 1 about (1, 0, 0), turned by 90 degrees: from 0.5 to 1.5 in x and from -1 to 1 in y."""
    box = np.array([[1.0, 0, 0, 2, 1, 1, np.pi / 2]])
    found = corners(box)[0]
    assert found.min(axis=0) == pytest.approx([0.5, -1, -0.5])
    assert found.max(axis=0) == pytest.approx([1.5, 1, 0.5])
    points = np.array([[1.0, 0.9, 0], [1.9, 0, 0], [0.6, -0.9, 0.4], [1.0, 0, 0.6]])
    assert inside(points, box)[:, 0].tolist() == [True, False, True, False]
    assert inside(points, box, margin=0.45)[:, 0].tolist() == [True, True, True, True]


def test_headings_are_counter_clockwise() -> None:
    """A long box at 45 degrees reaches into the first and third quadrants."""
    box = np.array([[0.0, 0, 0, 4, 0.2, 1, np.pi / 4]])
    assert inside(np.array([[1.2, 1.2, 0], [1.2, -1.2, 0]]), box)[:, 0].tolist() == [True, False]
