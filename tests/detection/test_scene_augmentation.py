"""Augmented scenes: boxes go exactly with their points."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from fedstill.core.dataset import Batch
from fedstill.data.augmentation import augmentations
from fedstill.detection.point_features import with_height
from fedstill.detection.scene_augmentation import SceneAugmentation, mirrored, quarter_turned, scaled, turned
from fedstill.detection.scenes import Scenes, inside


def batch_of(scenes: Scenes) -> Batch:
    return {"inputs": scenes.points, "boxes": scenes.boxes, "labels": scenes.classes}


def members(points: Tensor, boxes: Tensor, classes: Tensor, margin: float) -> list[np.ndarray]:
    return [
        inside(cloud.double().numpy(), box[there].double().numpy(), margin)
        for cloud, box, there in zip(points, boxes, classes >= 0, strict=True)
    ]


@pytest.mark.parametrize("turn", [0.0, 30.0])
@pytest.mark.parametrize("free", [False, True])
def test_points_in_boxes_stay_in_them_and_others_outside(
    rooms: Scenes, turned_rooms: Scenes, turn: float, free: bool
) -> None:
    """Points within a millimetre of a face may change sides by rounding: they are left out on both sides."""
    scenes = turned_rooms if free else rooms
    augment = SceneAugmentation(turn=turn, scale_low=0.8, scale_high=1.25)
    after = augment(batch_of(scenes), np.random.default_rng(0))
    assert not torch.equal(after["inputs"], scenes.points)
    before_in = members(scenes.points, scenes.boxes, scenes.classes, -1e-3)
    before_near = members(scenes.points, scenes.boxes, scenes.classes, 1e-3)
    after_in = members(after["inputs"], after["boxes"], scenes.classes, 1e-4)
    for sure, near, now in zip(before_in, before_near, after_in, strict=True):
        assert sure.any()
        assert (now | ~sure).all()
        assert (near | ~now).all()


def test_a_mirror_by_hand() -> None:
    """At 30 degrees, mirrored in x: 150; in y: -30; in both: -150. Heading 0 stays 0."""
    box = torch.tensor([[[1.0, 2, 3, 4, 5, 6, math.radians(30)], [1, 2, 3, 4, 5, 6, 0]]]).repeat(4, 1, 1)
    which = torch.tensor([[False, False], [True, False], [False, True], [True, True]])
    points = torch.tensor([[[1.0, 2.0, 3.0]]]).repeat(4, 1, 1)
    moved, boxes = mirrored(points, box, which)
    assert moved[:, 0].tolist() == [[1, 2, 3], [-1, 2, 3], [1, -2, 3], [-1, -2, 3]]
    assert boxes[:, 0, 6].rad2deg().tolist() == pytest.approx([30, 150, -30, -150], abs=1e-4)
    assert (boxes[:, 1, 6] == 0).all()
    assert torch.equal(boxes[:, 0, :3], moved[:, 0])
    assert torch.equal(boxes[:, :, 3:6], box[:, :, 3:6])


def test_quarter_turns_by_hand() -> None:
    """(1, 2) goes to (-2, 1), (-1, -2), (2, -1); heading 0 keeps 0 and swaps sizes, 0.1 gains a quarter turn each."""
    box = torch.tensor([[[1.0, 2, 3, 4, 5, 6, 0], [1, 2, 3, 4, 5, 6, 0.1], [0, 0, 0, 0, 0, 0, 0]]]).repeat(4, 1, 1)
    points = torch.tensor([[[1.0, 2.0, 3.0]]]).repeat(4, 1, 1)
    moved, boxes = quarter_turned(points, box, torch.arange(4))
    assert moved[:, 0].tolist() == [[1, 2, 3], [-2, 1, 3], [-1, -2, 3], [2, -1, 3]]
    assert boxes[:, 0].tolist() == [
        [1, 2, 3, 4, 5, 6, 0],
        [-2, 1, 3, 5, 4, 6, 0],
        [-1, -2, 3, 4, 5, 6, 0],
        [2, -1, 3, 5, 4, 6, 0],
    ]
    expected = [0.1, 0.1 + math.pi / 2, 0.1 - math.pi, 0.1 - math.pi / 2]
    assert boxes[:, 1, 6].tolist() == pytest.approx(expected, abs=1e-6)
    assert (boxes[:, 1, 3:6] == torch.tensor([4.0, 5.0, 6.0])).all()
    assert (boxes[:, 2] == 0).all()


def test_a_turn_and_a_scale_by_hand() -> None:
    """A turn by 90 degrees gives an axis-aligned box that heading; a factor of 2 doubles all lengths."""
    box = torch.tensor([[[1.0, 0, 3, 4, 5, 6, 0], [0, 0, 0, 0, 0, 0, 0]]])
    points = torch.tensor([[[1.0, 0.0, 3.0]]])
    moved, boxes = turned(points, box, torch.tensor([math.pi / 2], dtype=torch.float64))
    assert moved[0, 0].tolist() == pytest.approx([0, 1, 3], abs=1e-6)
    assert boxes[0, 0].tolist() == pytest.approx([0, 1, 3, 4, 5, 6, math.pi / 2], abs=1e-6)
    assert (boxes[0, 1] == 0).all()
    moved, boxes = scaled(points, box, torch.tensor([2.0]))
    assert moved[0, 0].tolist() == [2, 0, 6]
    assert boxes[0, 0].tolist() == [2, 0, 6, 8, 10, 12, 0]


def test_axis_aligned_boxes_stay_so_by_default(rooms: Scenes) -> None:
    after = SceneAugmentation()(batch_of(rooms), np.random.default_rng(1))
    assert (after["boxes"][:, :, 6] == 0).all()
    assert not torch.equal(after["boxes"][:, :, 3:5], rooms.boxes[:, :, 3:5])


def test_the_batch_given_stays_and_padding_stays_zero(rooms: Scenes) -> None:
    points, boxes = rooms.points.clone(), rooms.boxes.clone()
    after = SceneAugmentation(turn=20)(batch_of(rooms), np.random.default_rng(1))
    assert torch.equal(points, rooms.points)
    assert torch.equal(boxes, rooms.boxes)
    assert (after["boxes"][rooms.classes < 0] == 0).all()
    assert torch.equal(after["labels"], rooms.classes)
    assert after["inputs"].dtype == after["boxes"].dtype == torch.float32


def test_scenes_are_changed_each_in_its_own_way_and_the_same_by_seed(rooms: Scenes) -> None:
    same = {key: value[:1].repeat(64, 1, 1) for key, value in (("inputs", rooms.points), ("boxes", rooms.boxes))}
    once, again, other = (SceneAugmentation()(same, np.random.default_rng(seed)) for seed in (0, 0, 1))
    assert torch.equal(once["inputs"], again["inputs"])
    assert not torch.equal(once["inputs"], other["inputs"])
    assert len({cloud.numpy().tobytes() for cloud in once["inputs"]}) == 64


def test_switched_off_nothing_changes(rooms: Scenes) -> None:
    still = SceneAugmentation(mirror_x=False, mirror_y=False, quarter_turns=False, scale_low=1, scale_high=1)
    after = still(batch_of(rooms), np.random.default_rng(0))
    assert torch.equal(after["inputs"], rooms.points)
    assert torch.equal(after["boxes"], rooms.boxes)


def test_settings_are_checked() -> None:
    with pytest.raises(ValidationError, match="must not be larger"):
        SceneAugmentation(scale_low=1.2, scale_high=1.0)
    with pytest.raises(ValidationError):
        SceneAugmentation(turn=-1)


def test_scenes_that_nobody_labelled_are_changed_in_the_same_way(rooms: Scenes) -> None:
    batch = {"inputs": rooms.points[:6], "boxes": rooms.boxes[:6]}
    change = augmentations["scenes"](turn=20.0)
    told, blind = (change(each, np.random.default_rng(4)) for each in (batch, {"inputs": batch["inputs"]}))
    assert torch.equal(told["inputs"], blind["inputs"])
    assert set(blind) == {"inputs"}


def test_refitted_boxes_are_the_hulls_of_turned_ones_by_hand() -> None:
    """A box of 2 by 1 turned by 30 degrees spans 2 cos + 1 sin = 2.232 in x and 2 sin + 1 cos = 1.866 in y; its centre
    (1, 0) goes to (cos, sin). A box with a heading is turned as ever, and padding stays zeros."""
    boxes = torch.tensor([[[1.0, 0, 0.5, 2, 1, 3, 0], [0, 0, 0, 1, 1, 1, 0.2], [0.0] * 7]])
    batch = {"inputs": torch.zeros(1, 4, 3), "boxes": boxes}
    still = {"mirror_x": False, "mirror_y": False, "quarter_turns": False, "scale_low": 1.0, "scale_high": 1.0}

    class Largest(np.random.Generator):
        def uniform(self, low: float = 0.0, high: float = 1.0, size: object = None) -> np.ndarray:  # type: ignore[override]
            return np.full(size, high)  # type: ignore[call-overload]

    after = SceneAugmentation(turn=30, refit=True, **still)(batch, Largest(np.random.PCG64(0)))["boxes"][0]
    cosine, sine = math.cos(math.pi / 6), 0.5
    assert after[0].tolist() == pytest.approx([cosine, sine, 0.5, 2 * cosine + sine, 2 * sine + cosine, 3, 0])
    assert after[1, 6].item() == pytest.approx(0.2 + math.pi / 6)
    assert after[1, 3:6].tolist() == [1, 1, 1]
    assert not after[2].any()


def test_refitted_boxes_hold_what_they_held_and_leave_the_streams_as_they_are(rooms: Scenes) -> None:
    plain = SceneAugmentation(turn=5)(batch_of(rooms), np.random.default_rng(3))
    refitted = SceneAugmentation(turn=5, refit=True)(batch_of(rooms), np.random.default_rng(3))
    assert torch.equal(plain["inputs"], refitted["inputs"])
    assert (refitted["boxes"][..., 6] == 0).all()
    held = members(plain["inputs"], plain["boxes"], rooms.classes, -1e-3)
    now = members(refitted["inputs"], refitted["boxes"], rooms.classes, 1e-4)
    assert all((after | ~before).all() for before, after in zip(held, now, strict=True))
    assert "refit" not in SceneAugmentation().hashed()


def test_heights_are_scaled_with_their_scene_and_colours_stay(rooms: Scenes) -> None:
    """Heights of augmented scenes are those that would be computed from their points."""
    colours = torch.rand(*rooms.points.shape[:2], 3)
    inputs = with_height(torch.cat([rooms.points, colours], dim=-1))
    augment = SceneAugmentation(turn=30.0, scale_low=0.5, scale_high=2.0)
    after = augment({**batch_of(rooms), "inputs": inputs}, np.random.default_rng(0))
    bare = augment(batch_of(rooms), np.random.default_rng(0))
    assert torch.equal(after["inputs"][..., :3], bare["inputs"])
    assert torch.equal(after["boxes"], bare["boxes"])
    assert torch.equal(after["inputs"][..., 3:6], colours)
    torch.testing.assert_close(after["inputs"], with_height(after["inputs"][..., :6]), rtol=0, atol=1e-5)
    assert not torch.allclose(after["inputs"][..., 6], inputs[..., 6])
    only = augment({**batch_of(rooms), "inputs": inputs[..., :6]}, np.random.default_rng(0))
    assert torch.equal(only["inputs"], after["inputs"][..., :6])
