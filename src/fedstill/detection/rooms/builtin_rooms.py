"""Built-in rooms: scenes with furniture for object detection that need no download."""

from __future__ import annotations

from typing import get_args

import numpy as np

from fedstill.core.errors import InputError, did_you_mean
from fedstill.core.streams import Streams
from fedstill.data.clouds import FEWEST_POINTS
from fedstill.detection.rooms.footprints import Floats, turned
from fedstill.detection.rooms.furniture import CLASSES
from fedstill.detection.rooms.room_layout import KINDS, MOST, Headings, Room, furnish
from fedstill.detection.rooms.scan import scan
from fedstill.detection.scenes import Scene, Scenes, stack

POINTS = 2048
SEEN = 12  # points on an object: with fewer, it has no box


def make_rooms(
    number: int,
    seed: int = 0,
    points: int = POINTS,
    *,
    first: int = 0,
    headings: Headings = "right-angled",
    noise: float = 1.0,
    seen: int = SEEN,
) -> Scenes:
    """Rooms `first` to `first + number - 1` of a seed. Each has its own random generators, named by seed and index.

    So a room is bit for bit the same however many others are made, and its furniture is the same for all numbers of
    points. Boxes are tight around whole objects, even if parts are hidden. Objects with fewer than `seen` points have
    no box, since they could not be detected; their points stay. With `right-angled` headings all boxes are axis-aligned
    with heading 0, as in ScanNet, with sizes along x and y; with `free` ones rooms are rotated, and objects in them
    have arbitrary headings.

    >>> scenes = make_rooms(2, points=256)
    >>> tuple(scenes.points.shape), tuple(scenes.boxes.shape), tuple(scenes.classes.shape)
    ((2, 256, 3), (2, 9, 7), (2, 9))
    """
    if number < 1 or first < 0:
        raise InputError(f"rooms are counted from 0, and at least 1 is made: not {number} from {first}")
    if points < FEWEST_POINTS:
        raise InputError(f"a room needs at least {FEWEST_POINTS} points, not {points}")
    if headings not in get_args(Headings):
        raise InputError(f"there are no headings {headings!r}: {did_you_mean(headings, get_args(Headings))}")
    made = [one_room(seed, index, points, headings, noise, seen) for index in range(first, first + number)]
    return stack(made, CLASSES, KINDS, most=MOST)


def lay_out(seed: int, index: int, headings: Headings = "right-angled") -> Room:
    """The room of this number with all its furniture, before scanning."""
    rng = Streams(seed).draw("rooms", index, "layout")
    return furnish(int(rng.integers(len(KINDS))), rng, headings)


def one_room(
    seed: int, index: int, points: int, headings: Headings = "right-angled", noise: float = 1.0, seen: int = SEEN
) -> Scene:
    """The scene of this number."""
    room = lay_out(seed, index, headings)
    found = scan(room, points, Streams(seed).draw("rooms", index, "scan"), noise)
    counts = np.bincount(found.owner[found.owner >= 0], minlength=len(room.things))
    things = [thing for thing, count in zip(room.things, counts, strict=True) if thing.label >= 0 and count >= seen]
    boxes = np.array([thing.box() for thing in things]).reshape(-1, 7)
    boxes = aligned(boxes) if headings == "right-angled" else _turned_boxes(boxes, room.turn)
    cloud = found.points.copy()
    cloud[:, :2] = turned(cloud[:, :2], room.turn)
    labels = np.array([thing.label for thing in things], np.int64)
    return Scene(cloud, boxes, labels, room_name(seed, index), room.kind)


def room_name(seed: int, index: int) -> str:
    """The name of a room in messages and figures."""
    return f"room {index} of seed {seed}"


def aligned(boxes: Floats) -> Floats:
    """The same boxes with heading 0, where headings are quarter turns.

    >>> aligned(np.array([[0, 0, 0, 1.0, 2, 3, np.pi / 2], [0, 0, 0, 1, 2, 3, -np.pi]]))[:, 3:].tolist()
    [[2.0, 1.0, 3.0, 0.0], [1.0, 2.0, 3.0, 0.0]]
    """
    odd = np.rint(boxes[:, 6] / (np.pi / 2)).astype(np.int64) % 2 == 1
    same = boxes.copy()
    same[odd, 3:5] = boxes[odd, 4:2:-1]
    same[:, 6] = 0.0
    return same


def _turned_boxes(boxes: Floats, turn: float) -> Floats:
    new = boxes.copy()
    new[:, :2] = turned(boxes[:, :2], turn)
    new[:, 6] = (boxes[:, 6] + turn + np.pi) % (2 * np.pi) - np.pi
    return new
