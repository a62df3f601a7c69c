"""Rooms: things inside, apart from each other, of the classes their type has. Overlap is looked for by sampling."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import numpy as np
import numpy.typing as npt
import pytest

from fedstill.core.streams import Streams
from fedstill.detection.rooms.builtin_rooms import lay_out
from fedstill.detection.rooms.footprints import Rectangles, overlap
from fedstill.detection.rooms.furniture import CLASSES, Furniture
from fedstill.detection.rooms.room_layout import FEWEST, KINDS, MOST, TYPES, Headings, Placed, Room, collide, furnish
from fedstill.detection.scenes import corners, inside

Floats = npt.NDArray[np.float64]


@pytest.fixture(scope="module", params=["right-angled", "free"])
def rooms(request: pytest.FixtureRequest) -> list[Room]:
    headings: Headings = request.param
    return [lay_out(5, index, headings) for index in range(60)]


@pytest.fixture(scope="module")
def by_type() -> dict[str, list[Counter[str]]]:
    """What stands in 60 rooms of every type."""
    return {
        name: [
            Counter(thing.piece.name for thing in furnish(kind, Streams(1).draw(name, index)).things)
            for index in range(60)
        ]
        for kind, name in enumerate(KINDS)
    }


def part_boxes(thing: Placed) -> Floats:
    """Every part as a box of its own, by hand."""
    cosine, sine = np.cos(thing.heading), np.sin(thing.heading)
    rows = []
    for low, high in zip(thing.piece.low, thing.piece.high, strict=True):
        x, y, z = (low + high) / 2
        centre = thing.middle + np.array([cosine * x - sine * y, sine * x + cosine * y])
        rows.append([*centre, thing.level + z, *(high - low), thing.heading])
    return np.array(rows)


def filled(box: Floats) -> Floats:
    """A grid of points that fills a box but for a thin skin."""
    steps = np.linspace(-0.5, 0.5, 7) * 0.999
    grid = np.stack(np.meshgrid(steps, steps, steps), axis=-1).reshape(-1, 3) * box[3:6]
    cosine, sine = np.cos(box[6]), np.sin(box[6])
    x, y, z = grid.T
    return np.column_stack([cosine * x - sine * y, sine * x + cosine * y, z]) + box[:3]


def real(room: Room) -> list[Placed]:
    return [thing for thing in room.things if thing.label >= 0]


def test_rooms_have_three_to_nine_things(rooms: list[Room]) -> None:
    counts = [len(real(room)) for room in rooms]
    assert min(counts) >= FEWEST
    assert max(counts) <= MOST
    assert len(set(counts)) >= 4


def test_everything_is_inside_the_walls(rooms: list[Room]) -> None:
    for room in rooms:
        boxes = np.array([thing.box() for thing in real(room)])
        assert (np.abs(corners(boxes)[:, :, :2]) <= room.size[:2] / 2 + 1e-6).all()
        assert (boxes[:, 2] + boxes[:, 5] / 2 < room.size[2]).all()


def test_boxes_do_not_overlap_but_for_chairs_at_tables(rooms: list[Room]) -> None:
    at_tables = 0
    for room in rooms:
        for one, other in combinations(real(room), 2):
            meet = (
                inside(filled(one.box()), other.box()[None]).any() or inside(filled(other.box()), one.box()[None]).any()
            )
            if meet:
                names = {one.piece.name, other.piece.name}
                assert names in ({"chair", "table"}, {"chair", "desk"})
                at_tables += 1
    assert at_tables > 0


def test_parts_of_chairs_and_tables_do_not_meet(rooms: list[Room]) -> None:
    for room in rooms[:25]:
        for one, other in combinations(real(room), 2):
            if "chair" in (one.piece.name, other.piece.name):
                mine, theirs = part_boxes(one), part_boxes(other)
                points = np.concatenate([filled(box) for box in mine])
                assert not inside(points, theirs).any()


def test_boxes_are_tight_on_the_whole_thing(rooms: list[Room]) -> None:
    """In the box's own frame the corners of all parts just reach every face; round parts touch theirs in a point."""
    for room in rooms[:20]:
        for thing in room.things:
            box = thing.box()
            points = corners(part_boxes(thing)).reshape(-1, 3) - box[:3]
            cosine, sine = np.cos(box[6]), np.sin(box[6])
            own = np.column_stack(
                [cosine * points[:, 0] + sine * points[:, 1], cosine * points[:, 1] - sine * points[:, 0], points[:, 2]]
            )
            assert own.max(axis=0) == pytest.approx(box[3:6] / 2, abs=1e-9)
            assert own.min(axis=0) == pytest.approx(-box[3:6] / 2, abs=1e-9)


def test_what_has_a_back_turns_it_to_a_wall() -> None:
    """From the middle of a thing, the wall behind it is nearer than its depth."""
    for index in range(40):
        room = lay_out(5, index)
        for thing in real(room):
            if thing.piece.name in ("bed", "sofa", "bookshelf", "toilet"):
                behind = -np.array([np.cos(thing.heading), np.sin(thing.heading)])
                gap = room.size[:2] / 2 - np.abs(thing.middle)
                axis = int(np.abs(behind).argmax())
                assert np.sign(thing.middle[axis]) == np.sign(behind[axis])
                assert gap[axis] - thing.piece.size[0] / 2 < 0.07


def test_right_angled_headings_are_quarter_turns_and_free_ones_are_not() -> None:
    def headings(kind: Headings) -> Floats:
        return np.array([t.heading for index in range(20) for t in real(lay_out(5, index, kind))])

    turns = headings("right-angled") / (np.pi / 2)
    assert turns == pytest.approx(turns.round())
    assert set((turns.round() % 4).astype(int)) == {0, 1, 2, 3}
    free = headings("free") / (np.pi / 2)
    assert (np.abs(free - free.round()) > 1e-3).mean() > 0.9


def test_every_room_has_what_its_type_always_has(by_type: dict[str, list[Counter[str]]]) -> None:
    always = {"bedroom": "bed", "living room": "sofa", "dining room": "table", "office": "desk", "bathroom": "toilet"}
    for kind, name in always.items():
        assert sum(room[name] > 0 for room in by_type[kind]) >= 58


def test_class_frequencies_differ_by_type(by_type: dict[str, list[Counter[str]]]) -> None:
    mean = {
        kind: {name: np.mean([room[name] for room in rooms]) for name in CLASSES} for kind, rooms in by_type.items()
    }
    for other in ("bedroom", "living room", "dining room", "office"):
        assert mean[other]["toilet"] == mean[other]["bathtub"] == 0
        assert mean["bathroom"]["toilet"] >= 1
    assert mean["bathroom"]["bathtub"] > 0.4
    assert mean["dining room"]["chair"] > 2 * mean["living room"]["chair"]
    assert mean["office"]["desk"] > 3 * mean["bedroom"]["desk"]
    assert mean["bedroom"]["bed"] > 1 > mean["living room"]["bed"] == 0
    assert mean["living room"]["sofa"] > 3 * mean["office"]["sofa"]
    assert all(sum(mean[kind][name] for kind in KINDS) > 0.5 for name in CLASSES)


def test_types_name_only_forms_there_are() -> None:
    assert len(TYPES) == len(set(KINDS)) == 5
    for kind in TYPES:
        assert FEWEST <= kind.count[0] < kind.count[1] <= MOST
        assert len(kind.always) <= kind.count[0]


def test_a_chair_may_be_under_a_plate_but_not_in_a_leg() -> None:
    """A plate at 0.7 on one leg of 0.1 at the origin; a seat at 0.4 to 0.45, beside the leg and in it."""
    table = Furniture(
        "table",
        np.array([[-0.5, -0.5, 0.7], [-0.05, -0.05, 0]]),
        np.array([[0.5, 0.5, 0.75], [0.05, 0.05, 0.7]]),
        np.zeros(2, bool),
    )
    seat = Furniture("chair", np.array([[-0.2, -0.2, 0.4]]), np.array([[0.2, 0.2, 0.45]]), np.zeros(1, bool))
    at = Placed(table, np.zeros(2), 0.3)
    assert not collide(Placed(seat, np.array([0.4, 0.0]), 0.3), at)
    assert collide(Placed(seat, np.array([0.1, 0.0]), 0.3), at)


def test_overlap_agrees_with_sampling() -> None:
    rng = np.random.default_rng(0)
    middle, half, heading = rng.uniform(-1, 1, (40, 2)), rng.uniform(0.05, 0.8, (40, 2)), rng.uniform(-np.pi, np.pi, 40)
    found = overlap(*(Rectangles(middle[part], half[part], heading[part]) for part in (slice(20), slice(20, 40))))
    boxes = np.column_stack([middle, np.zeros(40), 2 * half, np.ones(40), heading])
    steps = np.linspace(-1, 1, 101)
    grid = np.stack(np.meshgrid(steps, steps), axis=-1).reshape(-1, 2)
    missed = 0
    for one in range(20):
        cosine, sine = np.cos(heading[one]), np.sin(heading[one])
        x, y = (grid * half[one]).T
        points = np.column_stack([cosine * x - sine * y, sine * x + cosine * y, 0 * x])
        points[:, :2] += middle[one]
        sampled = inside(points, boxes[20:]).any(axis=0)
        assert (found[one] | ~sampled).all()  # what a sample shows is found
        missed += int((found[one] & ~sampled).sum())  # slivers between samples
    assert found.any()
    assert not found.all()
    assert missed <= 3
