"""Machine-independent numbers: random draws by index, and elementary functions from exact arithmetic.

A patch is never sent, only its index, so client and server must compute the same patch bit for bit. IEEE 754 fixes the
results of + - * / and of square roots; it does not fix sines and exponentials, and numpy's differ between processors in
the last bit, which can change the rounding of a pixel. The few that are needed are therefore implemented here as
series.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fedstill.core.streams import Streams

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_WORDS = 4  # 64-bit words that Philox makes from one counter value
_AT_ONCE = 1024  # rows drawn together: drawing neighbouring rows is cheaper than seeking single ones
_LN_2 = 0.6931471805599453


def uniforms(seed: int, name: str, rows: Integers, width: int) -> Floats:
    """For every row its own `width` numbers from [0, 1), independent of which other rows are requested.

    Philox encrypts a counter: any part of its sequence can be computed without the parts before. Row i uses the counter
    values from i * width / 4 on, which makes it an independent generator at no cost.

    >>> some = uniforms(7, "example", np.array([5, 2]), 8)
    >>> bool((some[1] == uniforms(7, "example", np.array([2]), 8)[0]).all())
    True
    """
    assert width % _WORDS == 0
    drawn = np.empty((len(rows), width))
    blocks = rows // _AT_ONCE
    for block in np.unique(blocks).tolist():
        here = blocks == block
        words = _words_from(seed, name, block * _AT_ONCE * width // _WORDS, _AT_ONCE * width)
        drawn[here] = words.reshape(_AT_ONCE, width)[rows[here] - block * _AT_ONCE]
    return drawn


def sequence(seed: int, name: str, row: int, count: int) -> Floats:
    """As many numbers from [0, 1) as one row may need: its part of the counter is 2^64 values long."""
    return _words_from(seed, name, row * 2**64, count)


def _words_from(seed: int, name: str, counter: int, count: int) -> Floats:
    bits = Streams(seed).draw(name).bit_generator
    assert isinstance(bits, np.random.Philox)
    bits.advance(counter)
    # 53 bits each, from raw words: the output of a bit generator is stable across versions, that of its distributions
    # is not.
    words: NDArray[np.uint64] = bits.random_raw(count)
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


def sine_and_cosine(angle: Floats) -> tuple[Floats, Floats]:
    """Sine and cosine of angles from -pi to pi, to about 1e-15.

    >>> sine, cosine = sine_and_cosine(np.radians([-180.0, 30.0, 90.0]))
    >>> sine.round(12).tolist(), cosine.round(12).tolist()
    ([-0.0, 0.5, 1.0], [-1.0, 0.866025403784, 0.0])
    """
    square = angle * angle
    sine, cosine = np.ones_like(angle), np.ones_like(angle)
    for n in range(26, 0, -2):
        sine = 1.0 - square / (n * (n + 1)) * sine
        cosine = 1.0 - square / (n * (n - 1)) * cosine
    return angle * sine, cosine


def log_uniform(draws: Floats, low: float, high: float) -> Floats:
    """Draws from [0, 1) as numbers whose logarithm is uniform between those of `low` and `high`.

    >>> log_uniform(np.array([0.0, 0.5]), 1.0, 16.0).round(12).tolist()
    [1.0, 4.0]
    """
    small = draws * (natural_logarithm(high / low) / 64)
    power = np.ones_like(small)
    for n in range(12, 0, -1):
        power = 1.0 + small / n * power
    for _ in range(6):  # to the 64th
        power = power * power
    return low * power


def natural_logarithm(value: float) -> float:
    """The natural logarithm of a positive number, to about 1e-15.

    >>> round(natural_logarithm(10.0), 12) == round(math.log(10.0), 12)
    True
    """
    mantissa, exponent = math.frexp(value)
    ratio = (mantissa - 1.0) / (mantissa + 1.0)
    square, series = ratio * ratio, 0.0
    for n in range(41, 0, -2):
        series = 1.0 / n + square * series
    return exponent * _LN_2 + 2.0 * ratio * series
