"""Rectangles on the floor: overlap, and whether they are inside the room."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Rectangles:
    """Middles (n, 2), half sizes (n, 2) and headings (n,)."""

    middle: Floats
    half: Floats
    heading: Floats

    def __len__(self) -> int:
        return len(self.heading)

    def grown(self, margin: float) -> Rectangles:
        return Rectangles(self.middle, self.half + margin, self.heading)

    def reach(self) -> Floats:
        """The extent of each from its middle along the room's axes (n, 2)."""
        cosine, sine = np.abs(np.cos(self.heading)), np.abs(np.sin(self.heading))
        x, y = self.half.T
        return np.column_stack([cosine * x + sine * y, sine * x + cosine * y])


def joined(several: list[Rectangles]) -> Rectangles:
    """All of them as one set."""
    return Rectangles(
        np.concatenate([each.middle for each in several]),
        np.concatenate([each.half for each in several]),
        np.concatenate([each.heading for each in several]),
    )


def turned(offsets: Floats, heading: Floats | float) -> Floats:
    """Offsets (n, 2) in a frame with this heading, converted to the frame of the room.

    >>> turned(np.array([[1.0, 0.0]]), np.pi / 2).round(6).tolist()
    [[0.0, 1.0]]
    """
    cosine, sine = np.cos(heading), np.sin(heading)
    x, y = offsets.T
    return np.column_stack([cosine * x - sine * y, sine * x + cosine * y])


def overlap(some: Rectangles, others: Rectangles) -> NDArray[np.bool_]:
    """Which of some overlap which of the others (some, others); touching is no overlap.

    Two convex shapes are disjoint exactly if a line along a side of one of them separates them.

    >>> unit = np.array([[0.5, 0.5]])
    >>> square = Rectangles(np.zeros((1, 2)), unit, np.zeros(1))
    >>> diamond = Rectangles(np.array([[1.2, 0.0]]), unit, np.array([np.pi / 4]))
    >>> overlap(square, diamond).item(), overlap(square, Rectangles(diamond.middle, unit, np.zeros(1))).item()
    (True, False)
    """
    apart = others.middle[None] - some.middle[:, None]
    between = others.heading[None] - some.heading[:, None]
    cosine, sine = np.abs(np.cos(between)), np.abs(np.sin(between))
    mine, theirs = some.half[:, None], others.half[None]
    slack = 1e-9
    together = np.ones(between.shape, dtype=bool)
    for heading, own, other in (
        (some.heading[:, None], mine, theirs),
        (others.heading[None], theirs, mine),
    ):
        along = np.abs(apart[..., 0] * np.cos(heading) + apart[..., 1] * np.sin(heading))
        across = np.abs(apart[..., 1] * np.cos(heading) - apart[..., 0] * np.sin(heading))
        together &= along < own[..., 0] + cosine * other[..., 0] + sine * other[..., 1] - slack
        together &= across < own[..., 1] + sine * other[..., 0] + cosine * other[..., 1] - slack
    return together
