"""Secret sharing: hand-derived numbers are in the module's doctests; here any subset, and too few."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedstill.methods.secure.shamir import PRIME, combine, from_bytes, split, to_bytes


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**256 - 1), st.integers(2, 9), st.integers(0, 7), st.randoms(use_true_random=False))
def test_any_threshold_of_shares_gives_the_secret(secret: int, clients: int, less: int, random: Random) -> None:
    threshold = max(2, clients - less)
    shares = dict(enumerate(split(secret, threshold, clients, _coefficients(random, threshold - 1)), start=1))
    chosen = random.sample(sorted(shares), threshold)
    assert combine({x: shares[x] for x in chosen}) == secret
    if threshold > 2:
        assert combine({x: shares[x] for x in chosen[1:]}) != secret


def _coefficients(random: Random, count: int) -> list[int]:
    return [random.getrandbits(520) + 1 for _ in range(count)]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**256 - 1), st.integers(0, 2**256 - 1), st.integers(0, PRIME - 1))
def test_fewer_shares_fit_every_secret(secret: int, other: int, slope: int) -> None:
    """One share of a line: for any other secret there is a slope that gives the same share, so it tells nothing."""
    share = split(secret, 2, 3, [slope])[1]
    its_slope = (share - other) * pow(2, -1, PRIME) % PRIME
    assert split(other, 2, 3, [its_slope])[1] == share


def test_shares_travel_as_bytes_and_what_is_no_share_is_refused() -> None:
    assert from_bytes(to_bytes(PRIME - 1)) == PRIME - 1
    with pytest.raises(ValueError, match="not a share"):
        from_bytes((PRIME).to_bytes(66, "big"))
    with pytest.raises(ValueError, match="threshold"):
        split(1, 4, 3, [1, 1, 1])
