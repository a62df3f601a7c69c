"""Furniture from parametric parts: legs, plates, backs, drums.

Every piece stands on the floor at the origin, in metres: x to its front, y to its left, z up. Its parts are
axis-aligned blocks, or upright cylinders that fill such a block, so the tight box of a piece is that of its parts'
blocks. Dimensions are those of common furniture; the frequency of each form is a guess.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Rng = np.random.Generator
Part = tuple[float, float, float, float, float, float, bool]  # lowest x, y, z, highest x, y, z, whether it is round

CLASSES = ("bed", "table", "sofa", "chair", "toilet", "desk", "cabinet", "bookshelf", "bathtub", "lamp")


@dataclass(frozen=True)
class Furniture:
    """A piece with its parts; the middle of its tight box is above the origin."""

    name: str  # its class, or a description if it has none
    low: Floats  # (parts, 3)
    high: Floats
    round: NDArray[np.bool_]  # (parts,)

    @cached_property
    def size(self) -> Floats:
        """Full sizes of the tight box."""
        size: Floats = self.high.max(axis=0) - self.low.min(axis=0)
        return size


def make(form: str, rng: Rng) -> Furniture:
    """A random piece of some form: a class, or a special form of one."""
    name, build = FORMS[form]
    return assembled(name, build(rng))


def assembled(name: str, parts: list[Part]) -> Furniture:
    """A piece of these parts, moved so that its middle is above the origin and it stands on the floor."""
    numbers = np.array([part[:6] for part in parts])
    low, high = numbers[:, :3], numbers[:, 3:]
    bottom, top = low.min(axis=0), high.max(axis=0)
    shift = np.array([(bottom[0] + top[0]) / 2, (bottom[1] + top[1]) / 2, bottom[2]])
    return Furniture(name, low - shift, high - shift, np.array([part[6] for part in parts]))


def _block(x: float, y: float, z: float, depth: float, width: float, height: float) -> Part:
    """A block from its middle in x and y, its lower end in z, and its sizes."""
    return x - depth / 2, y - width / 2, z, x + depth / 2, y + width / 2, z + height, False


def _drum(x: float, y: float, z: float, depth: float, width: float, height: float) -> Part:
    return *_block(x, y, z, depth, width, height)[:6], True


def _legs(rng: Rng, depth: float, width: float, height: float, thick: float, inset: float = 0.03) -> list[Part]:
    """Four legs under a plate, round or square."""
    shape = _drum if rng.random() < 0.4 else _block
    across, along = depth / 2 - inset - thick / 2, width / 2 - inset - thick / 2
    return [shape(i * across, j * along, 0.0, thick, thick, height) for i in (-1, 1) for j in (-1, 1)]


def _chair(rng: Rng) -> list[Part]:
    """Four legs or a post on a foot; a full back, or rails between posts; armrests on some."""
    depth, width = rng.uniform(0.42, 0.52), rng.uniform(0.42, 0.52)
    seat, thick, top = rng.uniform(0.42, 0.48), rng.uniform(0.03, 0.07), rng.uniform(0.80, 1.02)
    parts = [_block(0, 0, seat - thick, depth, width, thick)]
    if rng.random() < 0.3:
        parts += [
            _drum(0, 0, 0.06, 0.06, 0.06, seat - thick - 0.06),
            _block(0, 0, 0.02, 0.9 * depth, 0.06, 0.05),
            _block(0, 0, 0.02, 0.06, 0.9 * width, 0.05),
            *(_drum(i * 0.42 * depth, 0, 0, 0.05, 0.05, 0.05) for i in (-1, 1)),
            *(_drum(0, j * 0.42 * width, 0, 0.05, 0.05, 0.05) for j in (-1, 1)),
        ]
    else:
        parts += _legs(rng, depth, width, seat - thick, rng.uniform(0.03, 0.05), 0.01)
    rear = -depth / 2 + 0.02
    if rng.random() < 0.6:
        gap = rng.uniform(0.0, 0.12)
        parts.append(_block(rear, 0, seat + gap, 0.04, 0.94 * width, top - seat - gap))
        if gap > 0:
            parts += [_block(rear, j * 0.3 * width, seat, 0.03, 0.04, gap) for j in (-1, 1)]
    else:
        parts += [_block(rear, j * (width / 2 - 0.02), seat, 0.04, 0.04, top - seat) for j in (-1, 1)]
        rails = int(rng.integers(2, 4))
        parts += [
            _block(rear, 0, seat + (top - seat) * (n + 1) / rails - 0.09, 0.025, width - 0.08, 0.09)
            for n in range(rails)
        ]
    if rng.random() < 0.25:
        arm = seat + rng.uniform(0.17, 0.22)
        parts += [_block(0, j * (width / 2 + 0.025), arm, 0.85 * depth, 0.05, 0.03) for j in (-1, 1)]
        parts += [_block(0.3 * depth, j * (width / 2 + 0.025), 0, 0.04, 0.04, arm) for j in (-1, 1)]
    return parts


def _table(rng: Rng) -> list[Part]:
    """A dining table: a plate on four legs, or a round one on a post."""
    height, thick = rng.uniform(0.71, 0.78), rng.uniform(0.03, 0.05)
    if rng.random() < 0.3:
        across = rng.uniform(0.85, 1.25)
        return [
            _drum(0, 0, height - thick, across, across, thick),
            _drum(0, 0, 0.03, 0.1, 0.1, height - thick - 0.03),
            _drum(0, 0, 0, 0.55 * across, 0.55 * across, 0.03),
        ]
    depth, width = rng.uniform(0.75, 1.0), rng.uniform(1.1, 1.9)
    legs = _legs(rng, depth, width, height - thick, rng.uniform(0.05, 0.09))
    return [_block(0, 0, height - thick, depth, width, thick), *legs]


def _coffee_table(rng: Rng) -> list[Part]:
    """A low table, with a shelf under the plate on some."""
    height, thick = rng.uniform(0.36, 0.48), rng.uniform(0.03, 0.06)
    if rng.random() < 0.25:
        across = rng.uniform(0.6, 0.9)
        return [
            _drum(0, 0, height - thick, across, across, thick),
            _drum(0, 0, 0, 0.5 * across, 0.5 * across, height - thick),
        ]
    depth, width = rng.uniform(0.5, 0.7), rng.uniform(0.8, 1.3)
    parts = [_block(0, 0, height - thick, depth, width, thick)]
    parts += _legs(rng, depth, width, height - thick, rng.uniform(0.04, 0.07))
    if rng.random() < 0.4:
        parts.append(_block(0, 0, 0.12, depth - 0.1, width - 0.1, 0.025))
    return parts


def _desk(rng: Rng) -> list[Part]:
    """A plate on two side panels, or on one and a set of drawers; a panel at the rear."""
    depth, width, height = rng.uniform(0.6, 0.78), rng.uniform(1.1, 1.6), rng.uniform(0.71, 0.77)
    under = height - 0.035
    parts = [_block(0, 0, under, depth, width, 0.035)]
    sides = [-1, 1] if rng.random() < 0.5 else [1, -1]
    drawers = rng.random() < 0.65
    for number, side in enumerate(sides):
        if number == 0 and drawers:
            wide = rng.uniform(0.36, 0.44)
            middle = side * (width / 2 - wide / 2 - 0.01)
            parts.append(_block(-0.02, middle, 0, depth - 0.08, wide, under))
            tall = under / 3
            parts += [
                _block(depth / 2 - 0.055, middle, n * tall + 0.01, 0.02, wide - 0.03, tall - 0.02) for n in range(3)
            ]
        else:
            parts.append(_block(0, side * (width / 2 - 0.025), 0, depth - 0.04, 0.03, under))
    parts.append(_block(-depth / 2 + 0.04, 0, rng.uniform(0.2, 0.4), 0.02, width - 0.1, 0.3))
    return parts


def _bed(rng: Rng) -> list[Part]:
    """Mattress on a frame, headboard at the rear, pillows; single or double."""
    double = rng.random() < 0.55
    width, length = rng.uniform(1.4, 1.85) if double else rng.uniform(0.9, 1.1), rng.uniform(1.95, 2.1)
    frame, top, head = rng.uniform(0.25, 0.33), rng.uniform(0.45, 0.6), rng.uniform(0.8, 1.2)
    board = rng.uniform(0.04, 0.1)
    parts = [
        _block(0, 0, frame, length - 0.04, width - 0.04, top - frame),
        _block(-length / 2 - board / 2, 0, 0, board, width, head),
    ]
    if rng.random() < 0.5:
        parts.append(_block(0, 0, 0, length, width, frame))
    else:
        parts += [_block(0, 0, frame - 0.14, length, width, 0.14), *_legs(rng, length, width, frame - 0.14, 0.07)]
    if rng.random() < 0.35:
        parts.append(_block(length / 2 + 0.025, 0, 0, 0.05, width, top + rng.uniform(0.02, 0.15)))
    sleepers = 2 if double else 1
    wide = min(0.75, width / sleepers - 0.1)
    for number in range(sleepers):
        middle = (number + 0.5) * width / sleepers - width / 2
        parts.append(_block(-length / 2 + 0.28, middle, top, 0.4, wide, rng.uniform(0.09, 0.15)))
    return parts


def _sofa(rng: Rng) -> list[Part]:
    """Seat cushions between arms, a back behind them; a long seat on one side of some."""
    seats = int(rng.integers(2, 4))
    arm, depth = rng.uniform(0.12, 0.22), rng.uniform(0.82, 0.98)
    each = rng.uniform(0.58, 0.68)
    width, seat = seats * each + 2 * arm, rng.uniform(0.4, 0.47)
    back, top = rng.uniform(0.18, 0.26), rng.uniform(0.75, 0.92)
    parts = [
        _block(0, 0, 0.06, depth, width, seat - 0.2),
        _block(-depth / 2 + back / 2, 0, 0.06, back, width, top - 0.06),
        *_legs(rng, depth, width, 0.06, 0.06),
    ]
    rest = rng.uniform(0.55, 0.66)
    parts += [_block(0, j * (width - arm) / 2, 0.06, depth, arm, rest - 0.06) for j in (-1, 1)]
    long = int(rng.integers(seats)) if rng.random() < 0.2 else -1
    more = rng.uniform(0.4, 0.6)
    for number in range(seats):
        middle = (number + 0.5) * each - seats * each / 2
        reach = more if number == long and number in (0, seats - 1) else 0.0
        parts.append(_block((back + reach) / 2, middle, seat - 0.14, depth - back + reach, each - 0.015, 0.14))
        if reach:
            parts.append(_block(depth / 2 + reach / 2, middle, 0.06, reach, each, seat - 0.2))
        parts.append(_block(-depth / 2 + back + 0.07, middle, seat, 0.14, each - 0.03, top - seat - 0.05))
    return parts


def _cabinet(rng: Rng) -> list[Part]:
    """A closed body with drawers or doors standing out at the front; low, or as high as a wardrobe."""
    depth, width = rng.uniform(0.4, 0.58), rng.uniform(0.5, 1.3)
    height = rng.uniform(1.6, 2.0) if rng.random() < 0.2 else rng.uniform(0.65, 1.2)
    foot = rng.uniform(0.04, 0.12)
    parts = [_block(0, 0, foot, depth, width, height - foot), _block(0, 0, height, depth + 0.04, width + 0.03, 0.025)]
    parts += _legs(rng, depth, width, foot, 0.06)
    columns = round(width / 0.5)
    rows = 1 if height > 1.3 or rng.random() < 0.4 else int(rng.integers(2, 5))
    wide, tall = width / columns, (height - foot) / rows
    for column in range(columns):
        middle = (column + 0.5) * wide - width / 2
        parts += [
            _block(depth / 2 + 0.01, middle, foot + row * tall + 0.015, 0.02, wide - 0.03, tall - 0.03)
            for row in range(rows)
        ]
    return parts


def _bookshelf(rng: Rng) -> list[Part]:
    """Open boards between two sides, with a back, and books on most boards."""
    depth, width, height = rng.uniform(0.25, 0.38), rng.uniform(0.6, 1.2), rng.uniform(1.4, 2.1)
    boards = int(rng.integers(4, 7))
    parts = [_block(0, j * (width / 2 - 0.0125), 0, depth, 0.025, height) for j in (-1, 1)]
    parts.append(_block(-depth / 2 + 0.005, 0, 0, 0.01, width - 0.05, height))
    gap = (height - 0.02) / (boards - 1)
    parts += [_block(0, 0, n * gap, depth, width - 0.05, 0.02) for n in range(boards)]
    for n in range(boards - 1):
        filled = rng.uniform(-0.3, 1.0)
        if filled > 0.1:
            length = filled * (width - 0.07)
            start = rng.choice([-1, 1]) * ((width - 0.06) / 2 - length / 2)
            tall = gap * rng.uniform(0.55, 0.85)
            parts.append(_block(-0.03, start, n * gap + 0.02, depth - rng.uniform(0.06, 0.12), length, tall - 0.02))
    return parts


def _toilet(rng: Rng) -> list[Part]:
    """A bowl on a narrower foot, a seat, and a cistern behind; its lid is open on some."""
    width, length, seat = rng.uniform(0.35, 0.40), rng.uniform(0.46, 0.54), rng.uniform(0.38, 0.43)
    deep, wide, top = rng.uniform(0.16, 0.2), rng.uniform(0.36, 0.46), rng.uniform(0.70, 0.84)
    parts = [
        _drum(0, 0, 0, 0.62 * length, 0.62 * width, seat - 0.2),
        _drum(0, 0, seat - 0.2, 0.9 * length, 0.9 * width, 0.17),
        _drum(0, 0, seat - 0.03, length, width, 0.03),
        _block(-length / 2, 0, 0, 0.2, 0.5 * width, seat - 0.03),
        _block(-length / 2 - deep / 2 + 0.02, 0, seat - 0.05, deep, wide, top - seat + 0.02),
        _block(-length / 2 - deep / 2 + 0.02, 0, top - 0.03, deep + 0.02, wide + 0.02, 0.03),
    ]
    if rng.random() < 0.3:
        parts.append(_block(-length / 2 + 0.045, 0, seat, 0.03, 0.95 * width, 0.36))
    return parts


def _bathtub(rng: Rng) -> list[Part]:
    """Four walls and a bottom; its long side goes to the wall."""
    depth, width, height = rng.uniform(0.7, 0.82), rng.uniform(1.5, 1.8), rng.uniform(0.5, 0.62)
    wall = rng.uniform(0.05, 0.1)
    return [
        *(_block(i * (depth - wall) / 2, 0, 0, wall, width, height) for i in (-1, 1)),
        *(_block(0, j * (width - wall) / 2, 0, depth - 2 * wall, wall, height) for j in (-1, 1)),
        _block(0, 0, 0, depth - 2 * wall, width - 2 * wall, rng.uniform(0.1, 0.16)),
    ]


def _lamp(rng: Rng) -> list[Part]:
    """A shade on a pole on a foot."""
    foot, shade, tall = rng.uniform(0.25, 0.34), rng.uniform(0.3, 0.48), rng.uniform(0.22, 0.36)
    top = rng.uniform(1.4, 1.75)
    return [
        _drum(0, 0, 0, foot, foot, 0.03),
        _drum(0, 0, 0.03, 0.035, 0.035, top - tall - 0.03),
        _drum(0, 0, top - tall, shade, shade, tall),
    ]


def _screen(rng: Rng) -> list[Part]:
    """A monitor on its stand: without a class, like most small objects in rooms."""
    width, tall = rng.uniform(0.45, 0.65), rng.uniform(0.28, 0.38)
    return [
        _block(0, 0, 0, 0.18, 0.24, 0.015),
        _block(-0.02, 0, 0.015, 0.03, 0.05, 0.12),
        _block(0, 0, 0.11, 0.03, width, tall),
    ]


def _pile(rng: Rng) -> list[Part]:
    """A parcel, a stack of books, a vase: without a class."""
    shape = _drum if rng.random() < 0.4 else _block
    return [shape(0, 0, 0, rng.uniform(0.12, 0.3), rng.uniform(0.12, 0.3), rng.uniform(0.05, 0.3))]


FORMS: dict[str, tuple[str, Callable[[Rng], list[Part]]]] = {
    "bed": ("bed", _bed),
    "table": ("table", _table),
    "coffee table": ("table", _coffee_table),
    "sofa": ("sofa", _sofa),
    "chair": ("chair", _chair),
    "toilet": ("toilet", _toilet),
    "desk": ("desk", _desk),
    "cabinet": ("cabinet", _cabinet),
    "bookshelf": ("bookshelf", _bookshelf),
    "bathtub": ("bathtub", _bathtub),
    "lamp": ("lamp", _lamp),
    "screen": ("screen", _screen),
    "pile": ("pile", _pile),
}
