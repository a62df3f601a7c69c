"""Made rooms: bits by seed and index, boxes with points in them, all shapes and types."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedstill.core.errors import InputError
from fedstill.core.streams import Streams
from fedstill.detection.rooms import CLASSES, KINDS, make_rooms
from fedstill.detection.rooms.builtin_rooms import SEEN, lay_out
from fedstill.detection.rooms.scan import scan
from fedstill.detection.scenes import Scenes, inside


def test_shapes_and_types(rooms: Scenes) -> None:
    assert (rooms.points.shape, rooms.points.dtype) == ((40, 2048, 3), torch.float32)
    assert (rooms.boxes.shape, rooms.boxes.dtype) == ((40, 9, 7), torch.float32)
    assert (rooms.classes.shape, rooms.classes.dtype) == ((40, 9), torch.int64)
    assert (rooms.kinds.shape, rooms.kinds.dtype) == ((40,), torch.int64)
    assert rooms.class_names == CLASSES
    assert rooms.kind_names == KINDS
    assert set(rooms.kinds.tolist()) == set(range(5))
    assert rooms.points.isfinite().all()
    assert ((rooms.boxes == 0).all(dim=2) == (rooms.classes == -1)).all()
    assert (rooms.boxes[rooms.classes >= 0][:, 3:6] > 0).all()


def test_a_room_depends_on_seed_and_index_alone(rooms: Scenes) -> None:
    np.random.seed(1)
    some = make_rooms(3, seed=3, first=5)
    for name in ("points", "boxes", "classes", "kinds"):
        assert torch.equal(getattr(some, name), getattr(rooms, name)[5:8])
    other = make_rooms(3, seed=4, first=5)
    assert not torch.equal(other.points, some.points)
    assert len({cloud.numpy().tobytes() for cloud in rooms.points}) == len(rooms)


def test_streams_are_named_by_the_index(rooms: Scenes) -> None:
    """Room 6 of seed 3, put together from its two streams by hand."""
    found = scan(lay_out(3, 6), 2048, Streams(3).draw("rooms", 6, "scan"))
    assert np.array_equal(rooms.points[6].numpy(), found.points.astype(np.float32))


def test_furniture_does_not_depend_on_the_number_of_points() -> None:
    few, many = (make_rooms(4, points=points, seen=0) for points in (128, 512))
    assert torch.equal(few.boxes, many.boxes)
    assert torch.equal(few.classes, many.classes)


def test_every_box_has_points_on_its_thing() -> None:
    """Without noise at least `SEEN` points of every box lie in it or on its faces."""
    for headings in ("right-angled", "free"):
        scenes = make_rooms(10, seed=8, noise=0.0, headings=headings)
        for row in range(len(scenes)):
            boxes, _ = scenes.boxes_of(row)
            within = inside(scenes.points[row].double().numpy(), boxes.double().numpy(), margin=1e-5)
            assert (within.sum(axis=0) >= SEEN).all()


def test_noise_leaves_points_near_their_boxes(rooms: Scenes) -> None:
    for row in range(len(rooms)):
        boxes, _ = rooms.boxes_of(row)
        within = inside(rooms.points[row].double().numpy(), boxes.double().numpy(), margin=0.1)
        assert (within.sum(axis=0) >= SEEN - 2).all()


def test_what_is_hidden_has_no_box_but_most_things_have_one(rooms: Scenes) -> None:
    there = [sum(thing.label >= 0 for thing in lay_out(3, index).things) for index in range(40)]
    kept = (rooms.classes >= 0).sum(dim=1)
    assert (kept <= torch.tensor(there)).all()
    assert 0.8 < int(kept.sum()) / sum(there) < 1.0
    strict = make_rooms(5, seed=3, seen=100)
    assert (strict.classes >= 0).sum() < (rooms.classes[:5] >= 0).sum()


def test_right_angled_boxes_are_axis_aligned_and_free_ones_are_turned(rooms: Scenes, turned_rooms: Scenes) -> None:
    assert (rooms.boxes[:, :, 6] == 0).all()
    headings = turned_rooms.boxes[turned_rooms.classes >= 0][:, 6]
    assert (headings.abs() <= torch.pi).all()
    assert len(headings.unique()) > 0.8 * len(headings)
    assert headings.std() > 1.0


def test_aligned_boxes_bound_the_turned_ones() -> None:
    """Sizes of a thing at a quarter turn change places: its box holds the same corners."""
    room = lay_out(3, 0)
    scenes = make_rooms(1, seed=3, seen=0)
    boxes, _ = scenes.boxes_of(0)
    things = [thing for thing in room.things if thing.label >= 0]
    for box, thing in zip(boxes.numpy(), things, strict=True):
        depth, width, height = thing.piece.size
        sideways = abs(np.sin(thing.heading)) > 0.5
        assert box[3:6] == pytest.approx([width, depth, height] if sideways else [depth, width, height], rel=1e-6)


def test_rooms_have_floors_and_walls(rooms: Scenes) -> None:
    for cloud in rooms.points:
        floor = (cloud[:, 2].abs() < 0.06).float().mean()
        assert floor > 0.03
        reach = cloud[:, :2].abs().quantile(0.99, dim=0)
        assert (reach > 0.9).all()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"number": 0}, "at least 1 is made: not 0 from 0"),
        ({"number": 1, "first": -1}, "not 1 from -1"),
        ({"number": 1, "points": 10}, "at least 64 points, not 10"),
        ({"number": 1, "headings": "fre"}, "no headings 'fre': did you mean 'free'"),
    ],
)
def test_bad_input_is_refused(arguments: dict[str, int], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        make_rooms(**arguments)
