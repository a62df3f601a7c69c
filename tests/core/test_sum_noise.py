"""A client's part of a sum: clipped so that it cannot be too long as integers either, and noised."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest
import torch

from fedstill.core.errors import InputError
from fedstill.core.streams import Streams
from fedstill.core.sum_noise import SumNoise
from fedstill.core.sums import FORMATS, FixedPoint, Layout, Summand

LINES = (Summand("w", "update"), Summand("b", "buffers"))
STREAMS = Streams(2)


def layout(bits: int = 4, numbers: int = 1000) -> Layout:
    formats = {**FORMATS, "update": FixedPoint(64.0, bits), "buffers": FixedPoint(64.0, bits)}
    return Layout({"w": (numbers,), "b": (2,)}, LINES, formats)


@pytest.mark.parametrize("scale", [1.0, 0.01])
@pytest.mark.parametrize("bits", [4, 32])
def test_as_integers_no_part_is_longer_than_the_clip(bits: int, scale: float) -> None:
    """In exact arithmetic, also where each of 1,000 numbers is rounded up by almost half a step."""
    noise, place = SumNoise(4.0, 0.0, False), layout(bits)
    values = {"w": torch.full((1000,), 1.51 * scale, dtype=torch.float64), "b": torch.zeros(2, dtype=torch.float64)}
    vector, cut = place.encoded(noise.clipped(values, place), 1, 3)
    whole = [int(one) for one in vector.view(np.int64)[2:]]
    assert cut == 0
    assert sum(one**2 for one in whole) <= (4 * 2**bits) ** 2
    plain = place.encoded(values, 1, 3)[0].view(np.int64)[2:]
    if scale == 1.0:
        assert sum(int(one) ** 2 for one in plain) > (4 * 2**bits) ** 2
    elif bits == 32:
        assert whole == plain.tolist()  # short enough: as it is


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), 1e200])
def test_what_is_not_finite_becomes_zero(wrong: float) -> None:
    """A length that double precision cannot hold is not finite either."""
    values = {"w": torch.full((3,), wrong, dtype=torch.float64), "b": torch.ones(2, dtype=torch.float64)}
    found = SumNoise(1.0, 1.0, False).clipped(values, layout(numbers=3))
    assert not any(bool(one.any()) for one in found.values())


def test_noise_is_on_every_number_and_not_on_what_is_public() -> None:
    """Deviation 0.5 is 8 steps of 2^-4; weight and clipped count, which every vector begins with, have none."""
    drawn = SumNoise(1.0, 0.5, False).drawn(layout(numbers=20_000), STREAMS).view(np.int64)
    assert drawn[:2].tolist() == [0, 0]
    assert drawn[2:].std() == pytest.approx(8, rel=4 / sqrt(40_000))
    again = SumNoise(1.0, 0.5, False).drawn(layout(numbers=20_000), STREAMS).view(np.int64)
    assert np.array_equal(drawn, again)
    other = SumNoise(1.0, 0.5, False).drawn(layout(numbers=20_000), Streams(3)).view(np.int64)
    assert abs(np.corrcoef(drawn[2:], other[2:])[0, 1]) < 4 / sqrt(20_000)
    secret = [SumNoise(1.0, 0.5, True).drawn(layout(numbers=20_000), STREAMS).view(np.int64) for _ in range(2)]
    assert not np.array_equal(*secret)
    assert all(one[2:].std() == pytest.approx(8, rel=4 / sqrt(40_000)) for one in secret)


def test_each_kind_has_noise_in_its_own_steps() -> None:
    """The same deviation of 2 is 2^9 steps of 2^-8 for weights, and 2^25 of 2^-24 for statistics."""
    place = Layout({"w": (5000,), "b": (5000,)}, LINES, {**FORMATS, "update": FixedPoint(64.0, 8)})
    drawn = SumNoise(1.0, 2.0, False).drawn(place, STREAMS).view(np.int64)
    parts = {name: drawn[piece].std() for name, piece in place.pieces()}
    assert parts == pytest.approx({"w": 2**9, "b": 2**25}, rel=0.05)


@pytest.mark.parametrize(
    ("noise", "bits", "why"),
    [
        (SumNoise(65.0, 1.0, False), 32, "set secure.clip as large"),
        (SumNoise(64.0, 2.0**22, False), 40, "could exceed 64 bits"),
        (SumNoise(1.0, 0.001, False), 8, "too small for steps of 2"),
        (SumNoise(1.0, 1.0, False), 8, "rounding 10,000 numbers to 2\\^-8 changes"),
    ],
)
def test_formats_that_do_not_fit_are_refused(noise: SumNoise, bits: int, why: str) -> None:
    with pytest.raises(InputError, match=why):
        noise.check({**FORMATS, "update": FixedPoint(64.0, bits)}, 10_000, 5)
    SumNoise(1.0, 1.0, False).check(FORMATS, 10_000_000, 1000)
