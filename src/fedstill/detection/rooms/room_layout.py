"""Rooms of several types, and the placement of furniture in them.

Objects with a back stand with it to a wall; chairs stand at tables and desks if there is space, partly under the plate,
so that the boxes of a chair and its table may overlap though their parts never do; everything else keeps a distance.
Rooms are axis-aligned with the origin in the middle of the floor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from fedstill.detection.rooms.footprints import Floats, Rectangles, joined, overlap, turned
from fedstill.detection.rooms.furniture import CLASSES, Furniture, make

Headings = Literal["right-angled", "free"]
Rng = np.random.Generator

FEWEST, MOST = 3, 9  # number of objects with a class in a room
_TRIES = 32  # positions tried for an object, all at once
_GAP = 0.06  # metres between objects
_AT_WALLS = {"bed", "sofa", "toilet", "desk", "cabinet", "bookshelf", "bathtub"}
_QUARTER = np.pi / 2


@dataclass(frozen=True)
class RoomType:
    """The size of rooms of a type, the furniture that is always in them, and the weights of other furniture."""

    name: str
    sides: tuple[float, float]  # metres, of both sides
    count: tuple[int, int]  # number of objects, if they can be placed
    always: tuple[str, ...]
    others: Mapping[str, float]  # forms of furniture by weight
    once: frozenset[str] = field(default_factory=frozenset)  # at most one of these


TYPES = (
    RoomType(
        "bedroom",
        (2.8, 4.2),
        (3, 7),
        ("bed",),
        {"cabinet": 4, "lamp": 2.5, "chair": 1.5, "bookshelf": 1, "desk": 1.5, "bed": 0.7, "sofa": 0.3},
        frozenset({"desk"}),
    ),
    RoomType(
        "living room",
        (3.4, 5.0),
        (4, 8),
        ("sofa", "coffee table"),
        {"sofa": 2, "lamp": 2.5, "bookshelf": 2, "cabinet": 2, "chair": 1.5, "desk": 0.3, "coffee table": 0.5},
    ),
    RoomType(
        "dining room",
        (3.0, 4.4),
        (4, 9),
        ("table", "chair", "chair"),
        {"chair": 7, "cabinet": 2, "lamp": 1, "bookshelf": 0.7, "table": 0.3, "sofa": 0.3},
    ),
    RoomType(
        "office",
        (3.0, 4.6),
        (4, 9),
        ("desk", "chair"),
        {"desk": 3, "chair": 4, "bookshelf": 2.5, "cabinet": 2, "table": 1, "lamp": 0.7, "sofa": 0.3},
    ),
    RoomType(
        "bathroom",
        (2.0, 2.9),
        (3, 5),
        ("toilet",),
        {"bathtub": 4, "cabinet": 3.5, "chair": 1, "lamp": 0.7, "toilet": 0.4},
        frozenset({"bathtub"}),
    ),
)
KINDS = tuple(kind.name for kind in TYPES)


@dataclass(frozen=True)
class Placed:
    """An object at its position; objects without a class may stand on others."""

    piece: Furniture
    middle: Floats  # (2,)
    heading: float
    level: float = 0.0  # of its lower end

    @property
    def label(self) -> int:
        return CLASSES.index(self.piece.name) if self.piece.name in CLASSES else -1

    def footprint(self) -> Rectangles:
        return Rectangles(self.middle[None], self.piece.size[None, :2] / 2, np.array([self.heading]))

    def parts(self) -> Rectangles:
        """Footprints of all parts."""
        low, high = self.piece.low[:, :2], self.piece.high[:, :2]
        middle = self.middle + turned((low + high) / 2, self.heading)
        return Rectangles(middle, (high - low) / 2, np.full(len(low), self.heading))

    def box(self) -> Floats:
        """The tight box of its parts."""
        size = self.piece.size
        return np.array([*self.middle, self.level + size[2] / 2, *size, self.heading])


@dataclass(frozen=True)
class Room:
    """Four walls, windows in them, and objects."""

    kind: int
    size: Floats  # width along x, depth along y, height
    things: tuple[Placed, ...]
    windows: Floats  # (windows, 5): wall (0 to 3, by its heading in quarter turns), from, to, lower end, upper end
    turn: float = 0.0  # of the whole, about z, for measurements


def furnish(kind: int, rng: Rng, headings: Headings = "right-angled") -> Room:
    """A random room of a type. If too few objects can be placed the room is enlarged, and all are placed anew."""
    what = TYPES[kind]
    sides = rng.uniform(*what.sides, 2)
    height = rng.uniform(2.4, 2.8)
    forms = _choose(what, rng)
    pieces = [(form, make(form, rng)) for form in forms]
    things = _place(pieces, sides, rng, headings)
    while len(things) < FEWEST:
        sides = sides + 0.4
        things = _place(pieces, sides, rng, headings)
    things += _clutter(things, rng)
    turn = float(rng.uniform(-np.pi, np.pi)) if headings == "free" else 0.0
    return Room(kind, np.array([*sides, height]), tuple(things), _windows(sides, rng), turn)


def _choose(what: RoomType, rng: Rng) -> list[str]:
    """Forms of furniture, the largest first, chairs after the tables and desks they stand at."""
    count = int(rng.integers(what.count[0], what.count[1] + 1))
    forms = list(what.always)
    weights = dict(what.others)
    while len(forms) < count:
        names = [name for name in weights if name not in what.once or name not in forms]
        shares = np.array([weights[name] for name in names])
        forms.append(str(rng.choice(names, p=shares / shares.sum())))
    order = (
        "bathtub",
        "bed",
        "sofa",
        "desk",
        "table",
        "bookshelf",
        "cabinet",
        "coffee table",
        "toilet",
        "chair",
        "lamp",
    )
    return sorted(forms, key=order.index)


def _place(pieces: list[tuple[str, Furniture]], sides: Floats, rng: Rng, headings: Headings) -> list[Placed]:
    """Every piece at the first of its random positions that is free; pieces without one are left out."""
    things: list[Placed] = []
    for form, piece in pieces:
        places = _places(form, piece, things, sides, rng, headings)
        room = (np.abs(places.spots.middle) + places.spots.reach() <= sides / 2 + 1e-9).all(axis=1)
        if things:
            taken = overlap(places.spots.grown(_GAP), joined([thing.footprint() for thing in things]))
            seated = np.flatnonzero(places.host >= 0)
            taken[seated, places.host[seated]] = False
            room &= ~taken.any(axis=1)
        for spot in np.flatnonzero(room):
            thing = Placed(piece, places.spots.middle[spot], float(places.spots.heading[spot]))
            host = int(places.host[spot])
            if host < 0 or not collide(thing, things[host]):
                things.append(thing)
                break
    return things


def collide(one: Placed, other: Placed) -> bool:
    """Whether any of their parts intersect: a seat under a plate does not."""
    flat = overlap(one.parts(), other.parts())
    low, high = one.piece.low[:, None, 2] + one.level, one.piece.high[:, None, 2] + one.level
    theirs = other.piece.low[None, :, 2] + other.level, other.piece.high[None, :, 2] + other.level
    return bool((flat & (low < theirs[1]) & (theirs[0] < high)).any())


@dataclass(frozen=True)
class _Places:
    """Candidate positions of a piece, and the table or desk it would stand at, or -1."""

    spots: Rectangles
    host: np.ndarray[tuple[int], np.dtype[np.int64]]


def _places(form: str, piece: Furniture, things: list[Placed], sides: Floats, rng: Rng, headings: Headings) -> _Places:
    free = headings == "free"
    hosts = [n for n, thing in enumerate(things) if thing.piece.name in ("table", "desk") and thing.piece.size[2] > 0.6]
    sofas = [n for n, thing in enumerate(things) if thing.piece.name == "sofa"]
    nobody = np.full(_TRIES, -1)
    if form == "chair" and hosts:
        seated = _seats(piece, [things[n] for n in hosts], np.array(hosts), rng, free)
        alone = _anywhere(piece, sides, rng, free)
        return _Places(joined([seated.spots, alone]), np.concatenate([seated.host, nobody]))
    if form == "coffee table" and sofas:
        before = _before(piece, things[sofas[0]], rng)
        return _Places(joined([before, _anywhere(piece, sides, rng, free)]), np.concatenate([nobody, nobody]))
    if form in _AT_WALLS:
        return _Places(_at_walls(piece, sides, rng, free), nobody)
    if form == "lamp":
        return _Places(_at_walls(piece, sides, rng, free, gap=0.25), nobody)
    return _Places(_anywhere(piece, sides, rng, free, central=0.6 if form == "table" else 1.0), nobody)


def _at_walls(piece: Furniture, sides: Floats, rng: Rng, free: bool, gap: float = 0.06) -> Rectangles:
    """Positions with the back to a wall; with free headings some are a few degrees off."""
    wall = rng.integers(0, 4, _TRIES)
    heading = wall.astype(np.float64) * _QUARTER
    half = np.tile(piece.size[:2] / 2, (_TRIES, 1))
    askew = rng.normal(0.0, np.radians(4.0), _TRIES) if free else np.zeros(_TRIES)
    along = rng.uniform(-1.0, 1.0, _TRIES)
    away = rng.uniform(0.01, gap, _TRIES)
    reach = Rectangles(np.zeros((_TRIES, 2)), half, askew).reach()
    # In the frame of its wall, whose heading points into the room.
    depth, length = np.where(wall % 2 == 0, sides[0], sides[1]), np.where(wall % 2 == 0, sides[1], sides[0])
    inwards = -depth / 2 + reach[:, 0] + away
    aside = along * np.maximum(0.0, length / 2 - reach[:, 1])
    return Rectangles(turned(np.column_stack([inwards, aside]), heading), half, _wrapped(heading + askew))


def _anywhere(piece: Furniture, sides: Floats, rng: Rng, free: bool, central: float = 1.0) -> Rectangles:
    turns = rng.uniform(-2.0, 2.0, _TRIES) if free else rng.integers(0, 4, _TRIES).astype(np.float64)
    heading = turns * _QUARTER
    spots = Rectangles(np.zeros((_TRIES, 2)), np.tile(piece.size[:2] / 2, (_TRIES, 1)), _wrapped(heading))
    room = np.maximum(0.0, sides / 2 - spots.reach()) * central
    return replace(spots, middle=rng.uniform(-1.0, 1.0, (_TRIES, 2)) * room)


def _seats(piece: Furniture, hosts: list[Placed], numbers: Floats, rng: Rng, free: bool) -> _Places:
    """At a side of a table, or at the front of a desk, facing it, pushed under the plate or drawn away."""
    which = rng.integers(0, len(hosts), _TRIES)
    side = rng.integers(0, 4, _TRIES)
    side[np.array([hosts[n].piece.name == "desk" for n in which])] = 0
    size = np.array([host.piece.size[:2] for host in hosts])[which]
    size = np.where(side[:, None] % 2 == 0, size, size[:, ::-1])  # deep and wide, as that side sees it
    under = rng.uniform(-0.15, 0.28, _TRIES)
    aside = rng.uniform(-1.0, 1.0, _TRIES) * np.maximum(0.0, size[:, 1] / 2 - piece.size[1] / 2)
    out = size[:, 0] / 2 + piece.size[0] / 2 - under
    towards = np.array([host.heading for host in hosts])[which] + side * _QUARTER
    middle = np.array([host.middle for host in hosts])[which] + turned(np.column_stack([out, aside]), towards)
    askew = rng.normal(0.0, np.radians(12.0), _TRIES) if free else np.zeros(_TRIES)
    half = np.tile(piece.size[:2] / 2, (_TRIES, 1))
    return _Places(Rectangles(middle, half, _wrapped(towards + np.pi + askew)), numbers[which].astype(np.int64))


def _before(piece: Furniture, sofa: Placed, rng: Rng) -> Rectangles:
    """In front of a sofa, along it."""
    out = sofa.piece.size[0] / 2 + piece.size[0] / 2 + rng.uniform(0.2, 0.6, _TRIES)
    aside = rng.normal(0.0, 0.2, _TRIES)
    middle = sofa.middle + turned(np.column_stack([out, aside]), sofa.heading)
    return Rectangles(middle, np.tile(piece.size[:2] / 2, (_TRIES, 1)), np.full(_TRIES, sofa.heading))


def _clutter(things: list[Placed], rng: Rng) -> list[Placed]:
    """Monitors on desks and a few objects on plates, without labels."""
    more: list[Placed] = []
    for thing in things:
        depth, width, height = thing.piece.size
        if thing.piece.name == "desk" and rng.random() < 0.6:
            offset = np.array([[-depth / 4, rng.uniform(-0.15, 0.15) * width]])
            more.append(
                Placed(make("screen", rng), thing.middle + turned(offset, thing.heading)[0], thing.heading, height)
            )
        elif thing.piece.name in ("table", "cabinet") and rng.random() < 0.4:
            offset = np.array([[rng.uniform(-0.15, 0.15) * depth, rng.uniform(-0.25, 0.25) * width]])
            more.append(
                Placed(make("pile", rng), thing.middle + turned(offset, thing.heading)[0], thing.heading, height)
            )
    return more


def _windows(sides: Floats, rng: Rng) -> Floats:
    """Up to two windows: depth cameras get no return from glass."""
    rows = []
    for _ in range(int(rng.integers(0, 3))):
        wall = int(rng.integers(4))
        length = sides[1] if wall % 2 == 0 else sides[0]
        width = min(rng.uniform(0.8, 1.6), 0.8 * length)
        start = rng.uniform(-length / 2, length / 2 - width)
        sill = rng.uniform(0.8, 1.1)
        rows.append([wall, start, start + width, sill, sill + rng.uniform(0.9, 1.2)])
    return np.array(rows).reshape(-1, 5)


def _wrapped(angle: Floats) -> Floats:
    """The angle, wrapped into -pi to pi.

    >>> _wrapped(np.array([3 * np.pi])).round(6).tolist()
    [-3.141593]
    """
    wrapped: Floats = (angle + np.pi) % (2 * np.pi) - np.pi
    return wrapped
