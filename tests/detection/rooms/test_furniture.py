"""Furniture: pieces of sensible sizes that stand on the floor, varied, and tight in their boxes."""

from __future__ import annotations

import numpy as np
import pytest

from fedstill.core.streams import Streams
from fedstill.detection.rooms.furniture import CLASSES, FORMS, Furniture, make

# Lowest and highest plausible full sizes of the box: front to back, side to side, height.
SIZES = {
    "bed": ((1.9, 0.85, 0.7), (2.4, 1.95, 1.3)),
    "table": ((0.45, 0.55, 0.3), (1.3, 2.0, 0.85)),
    "sofa": ((0.75, 1.2, 0.6), (1.7, 2.6, 1.0)),
    "chair": ((0.4, 0.4, 0.75), (0.6, 0.7, 1.1)),
    "toilet": ((0.5, 0.3, 0.65), (0.8, 0.55, 0.9)),
    "desk": ((0.55, 1.0, 0.65), (0.85, 1.7, 0.8)),
    "cabinet": ((0.35, 0.45, 0.6), (0.7, 1.4, 2.1)),
    "bookshelf": ((0.2, 0.55, 1.3), (0.4, 1.25, 2.15)),
    "bathtub": ((0.65, 1.4, 0.45), (0.9, 1.85, 0.65)),
    "lamp": ((0.25, 0.25, 1.3), (0.5, 0.5, 1.8)),
}


def pieces(form: str, count: int = 30) -> list[Furniture]:
    return [make(form, Streams(0).draw(form, number)) for number in range(count)]


def test_there_are_ten_classes_and_every_one_has_a_form() -> None:
    assert len(CLASSES) == len(set(CLASSES)) == 10
    assert set(CLASSES) <= {name for name, _ in FORMS.values()}
    assert set(SIZES) == set(CLASSES)


@pytest.mark.parametrize("form", sorted(FORMS))
def test_pieces_stand_on_the_floor_with_their_middle_at_the_origin(form: str) -> None:
    for piece in pieces(form):
        assert (piece.high > piece.low).all()
        low, high = piece.low.min(axis=0), piece.high.max(axis=0)
        assert low[2] == pytest.approx(0.0, abs=1e-12)
        assert low[:2] == pytest.approx(-high[:2])
        assert piece.size == pytest.approx(high - low)


@pytest.mark.parametrize("form", [form for form, (name, _) in FORMS.items() if name in CLASSES])
def test_sizes_are_those_of_furniture_and_differ(form: str) -> None:
    sizes = np.array([piece.size for piece in pieces(form)])
    low, high = SIZES[FORMS[form][0]]
    assert (sizes >= low).all()
    assert (sizes <= high).all()
    assert len(np.unique(sizes.round(4), axis=0)) == len(sizes)


@pytest.mark.parametrize("form", sorted(FORMS))
def test_a_piece_hangs_together(form: str) -> None:
    """Every part touches or overlaps another one, within a centimetre: nothing floats."""
    for piece in pieces(form, 20):
        low, high = piece.low - 0.005, piece.high + 0.005
        near = ((low[:, None] <= high[None]) & (low[None] <= high[:, None])).all(axis=2)
        reached = np.zeros(len(low), dtype=bool)
        reached[0] = True
        for _ in range(len(low)):
            reached |= near[reached].any(axis=0)
        assert reached.all(), f"{(~reached).sum()} loose parts"


def test_sofas_have_backs_where_their_rear_is() -> None:
    """The highest part of sofas, chairs and beds is behind the middle: x points to the front."""
    for form in ("sofa", "chair", "bed", "toilet"):
        for piece in pieces(form, 10):
            highest = piece.high[:, 2].argmax()
            assert (piece.low + piece.high)[highest, 0] < 0
