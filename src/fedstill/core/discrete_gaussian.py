"""Whole numbers from the discrete Gaussian distribution, drawn exactly, for noise that is added to whole numbers.

*The Discrete Gaussian for Differential Privacy*, Canonne, Kamath and Steinke, 2020, https://arxiv.org/abs/2004.00010

    P(x) is proportional to exp(-x^2 / (2 s^2)) for whole x
    1.  y <- discrete Laplace: P(y) proportional to exp(-|y| / t)
    2.  accept y with probability exp(-(|y| - s^2 / t)^2 / (2 s^2)), else repeat

The paper takes t = floor(s) + 1; every t gives the same distribution, and here t is the next power of two, so that
uniform numbers below t are random bits. Its coins with probability exp(-g) are made of many exact ones; here a coin
compares 64 random bits with exp(-g) in double precision, and where they lie so close that rounding could decide (once
in about 2^39 coins), with exp(-g) to as many digits, and as many more random bits, as it takes. So each coin has its
exact probability, given independent random bits.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np

Octets = Callable[[int], bytes]  # so many random bytes
Exponents = Callable[[int], Fraction]  # the exact g of a coin, by its place

LARGEST_VARIANCE = 4**52  # whole numbers then stay below 2^63, and U / t is exact in double precision
_DOUBTFUL = 2.0**-40  # far above the error of exp(-g) in double precision
_PIECE = 2**18  # proposals at a time


def discrete_gaussian(variance: Fraction | int, count: int, octets: Octets) -> np.ndarray:
    """So many independent numbers of a discrete Gaussian with parameter s^2 = `variance`."""
    if not 0 < variance <= LARGEST_VARIANCE:
        raise ValueError(f"the variance must lie between 0 and {LARGEST_VARIANCE}, and is {variance}")
    found, filled = np.empty(count, dtype=np.int64), 0
    while filled < count:
        proposals = min(2 * (count - filled) + 16, _PIECE)
        accepted = _accepted(Fraction(variance), proposals, octets)[: count - filled]
        found[filled : filled + len(accepted)] = accepted
        filled += len(accepted)
    return found


def scale_of(variance: Fraction) -> int:
    """The exponent k of the least t = 2^k with t >= s.

    >>> [scale_of(Fraction(v)) for v in (Fraction(1, 4), 1, 4, 5, 16, 17)]
    [0, 0, 1, 2, 2, 3]
    """
    exponent = 0
    while 4**exponent < variance:
        exponent += 1
    return exponent


def _accepted(variance: Fraction, proposals: int, octets: Octets) -> np.ndarray:
    exponent = scale_of(variance)
    values = _laplace(exponent, proposals, octets)
    centre = Fraction(variance, 1 << exponent)  # s^2 / t
    sizes = np.abs(values)
    gaps = sizes.astype(np.float64) - float(centre)

    def exact(place: int) -> Fraction:
        gap = int(sizes[place]) - centre
        return gap * gap / (2 * variance)

    kept: np.ndarray = values[_coins(gaps * gaps / (2 * float(variance)), exact, octets)]
    return kept


def _laplace(exponent: int, proposals: int, octets: Octets) -> np.ndarray:
    """Numbers y with P(y) proportional to exp(-|y| / t), t = 2^exponent; fewer than `proposals`."""
    rests = _words(proposals, octets) >> np.uint64(64 - exponent) if exponent else np.zeros(proposals, dtype=np.uint64)
    rests = rests[_coins(rests / 2.0**exponent, lambda place: Fraction(int(rests[place]), 2**exponent), octets)]
    wholes = np.zeros(len(rests), dtype=np.int64)
    going = np.arange(len(rests))
    while len(going):
        going = going[_coins(np.ones(len(going)), lambda _: Fraction(1), octets)]
        wholes[going] += 1
    sizes = rests.astype(np.int64) + (wholes << exponent)
    negative = (_words(len(sizes), octets) >> np.uint64(63)).astype(bool)
    once = ~(negative & (sizes == 0))  # zero has one sign
    found: np.ndarray = np.where(negative, -sizes, sizes)[once]
    return found


def _coins(exponents: np.ndarray, exact: Exponents, octets: Octets) -> np.ndarray:
    """For each g whether a coin of probability exp(-g) fell; `exact` gives g where double precision cannot decide."""
    words = _words(len(exponents), octets)
    drawn, chances = (words >> np.uint64(11)) * 2.0**-53, np.exp(-exponents)
    fell: np.ndarray = drawn < chances
    for place in np.flatnonzero(np.abs(drawn - chances) < _DOUBTFUL):
        fell[place] = exact_coin(exact(int(place)), int(words[place]), octets)
    return fell


def exact_coin(exponent: Fraction, drawn: int, octets: Octets) -> bool:
    """Whether a uniform number that begins with the 64 bits `drawn` lies below exp(-exponent).

    >>> exact_coin(Fraction(1), 6786177901268885274, bytes), exact_coin(Fraction(1), 6786177901268885275, bytes)
    (True, False)
    """
    if not exponent:
        return True
    bits = 64
    while True:
        with localcontext() as context:
            context.prec = bits // 3 + 30  # so that the error of what follows is far below one
            chance = (Decimal(-exponent.numerator) / exponent.denominator).exp()
            scaled = int(chance * 2**bits)
        if drawn + 1 < scaled:
            return True
        if drawn > scaled + 1:
            return False
        drawn, bits = drawn << 64 | int.from_bytes(octets(8), "little"), bits + 64


def _words(count: int, octets: Octets) -> np.ndarray:
    """Numbers of 64 random bits."""
    return np.frombuffer(octets(8 * count), dtype="<u8").astype(np.uint64, copy=False)
