"""The sampler against the distribution's definition, and its coins against each other."""

from __future__ import annotations

from fractions import Fraction
from math import sqrt

import numpy as np
import pytest
from scipy.stats import chisquare, kstest

from fedstill.core import discrete_gaussian as module
from fedstill.core.discrete_gaussian import LARGEST_VARIANCE, discrete_gaussian, exact_coin
from fedstill.core.streams import Streams

DRAWS = 40_000


def octets(*names: str | int) -> module.Octets:
    return Streams(5).draw("noise", *names).bytes


def chances(variance: float) -> dict[int, float]:
    """exp(-x^2 / 2 s^2) over all x that matter, divided by its sum."""
    far = int(12 * sqrt(variance)) + 2
    weights = {x: float(np.exp(-(x**2) / (2 * variance))) for x in range(-far, far + 1)}
    return {x: weight / sum(weights.values()) for x, weight in weights.items()}


@pytest.mark.parametrize("variance", [Fraction(1, 9), Fraction(1), Fraction(9, 4), Fraction(30), Fraction(1000)])
def test_frequencies_are_those_of_the_definition(variance: Fraction) -> None:
    drawn = discrete_gaussian(variance, DRAWS, octets(str(variance)))
    expected = {x: DRAWS * chance for x, chance in chances(float(variance)).items()}
    common = [x for x, count in expected.items() if count >= 10]
    counts = [int((drawn == x).sum()) for x in common]
    rest = DRAWS - sum(expected[x] for x in common)
    if rest > 1:
        common_counts, wanted = [*counts, DRAWS - sum(counts)], [*(expected[x] for x in common), rest]
    else:
        common_counts, wanted = counts, [expected[x] * sum(counts) / (DRAWS - rest) for x in common]
    assert chisquare(common_counts, wanted).pvalue > 1e-3


def test_moments_and_shape_where_steps_are_fine() -> None:
    """With s = 3 10^9 it is a normal distribution to any test: mean 0, variance s^2, kurtosis 3."""
    deviation = 3_000_000_000
    drawn = discrete_gaussian(deviation**2, DRAWS, octets("fine")) / deviation
    assert kstest(drawn, "norm").pvalue > 1e-3
    assert abs(drawn.mean()) < 4 / sqrt(DRAWS)
    assert abs((drawn**2).mean() - 1) < 4 * sqrt(2 / DRAWS)
    assert abs((drawn**4).mean() - 3) < 4 * sqrt(96 / DRAWS)


def test_the_last_bits_are_even_as_rounded_noise_in_double_precision_is_not() -> None:
    """s = 2^50: a normal number in double precision has no such bits left."""
    drawn = discrete_gaussian(4**50, DRAWS, octets("bits"))
    assert chisquare(np.bincount(drawn & 7, minlength=8)).pvalue > 1e-3


def test_noise_of_a_sum_is_the_sum_of_noises() -> None:
    """The variance of the sum of five is five times as large, and its shape still normal."""
    total = sum(discrete_gaussian(10**12, DRAWS, octets("part", part)) for part in range(5))
    assert kstest(total / sqrt(5e12), "norm").pvalue > 1e-3


def test_exact_coins_agree_with_quick_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """With every coin tossed by exact arithmetic the same bits give the same numbers."""
    for variance in (Fraction(9, 4), Fraction(12345678901234567890)):
        quick = discrete_gaussian(variance, 300, octets("coins"))
        with monkeypatch.context() as patched:
            patched.setattr(module, "_DOUBTFUL", 2.0)
            assert np.array_equal(discrete_gaussian(variance, 300, octets("coins")), quick)


def test_a_coin_on_the_edge_reads_on() -> None:
    """floor(2^64 / e) is followed by the digits of 1/e: more bits decide, and only as many as it takes."""
    edge = 6786177901268885274  # floor(2^64 exp(-1))
    beyond = 0x86C0_1F20_5DE7_6D49  # any bits

    def given(bits: int) -> tuple[bool, int]:
        read = []

        def more(count: int) -> bytes:
            read.append(count)
            return bits.to_bytes(8, "little")

        return exact_coin(Fraction(1), edge, more), len(read)

    assert exact_coin(Fraction(1), edge - 2, octets())
    assert not exact_coin(Fraction(1), edge + 2, octets())
    assert given(0) == (True, 1)
    assert given(2**64 - 1) == (False, 1)
    assert given(beyond)[1] >= 1
    assert exact_coin(Fraction(0), 2**64 - 1, octets())


def test_a_variance_out_of_range_is_refused() -> None:
    for wrong in (0, -1, LARGEST_VARIANCE + 1):
        with pytest.raises(ValueError, match="variance"):
            discrete_gaussian(wrong, 1, octets())
    assert len(discrete_gaussian(LARGEST_VARIANCE, 3, octets())) == 3
    assert len(discrete_gaussian(1, 0, octets())) == 0
