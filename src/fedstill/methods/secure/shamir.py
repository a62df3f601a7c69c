"""Shamir's secret sharing: any `threshold` of the shares give the secret, fewer give nothing.

*How to Share a Secret*, Shamir, 1979, https://doi.org/10.1145/359168.359176

    f(x) = s + a_1 x + ... + a_(t-1) x^(t-1)   modulo the prime P = 2^521 - 1, with random a_k
    the share at x = 1, 2, ..., n is f(x), and s = f(0)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

PRIME = 2**521 - 1  # a Mersenne prime, above every secret of 32 bytes
BYTES = 66  # of a share


def split(secret: int, threshold: int, clients: int, coefficients: Sequence[int]) -> list[int]:
    """The shares at 1, 2, ..., `clients`; `coefficients` are the random a_1, ..., a_(t-1).

    >>> split(5, 2, 3, [7])  # 5 + 7 x
    [12, 19, 26]
    >>> split(1, 3, 4, [2, 3])  # 1 + 2 x + 3 x^2
    [6, 17, 34, 57]
    """
    if not 0 <= secret < PRIME or not 1 <= threshold <= clients or len(coefficients) != threshold - 1:
        raise ValueError("a secret below the prime, a threshold up to the number of shares, and as many coefficients")
    polynomial = [secret, *(one % PRIME for one in coefficients)]
    return [_value(polynomial, x) for x in range(1, clients + 1)]


def _value(polynomial: Sequence[int], x: int) -> int:
    """By Horner's rule."""
    value = 0
    for coefficient in reversed(polynomial):
        value = (value * x + coefficient) % PRIME
    return value


def combine(shares: Mapping[int, int]) -> int:
    """The secret from as many shares as the threshold, each by its x; by Lagrange's interpolation at 0.

    >>> combine({1: 12, 3: 26}), combine({2: 17, 3: 34, 4: 57})
    (5, 1)
    """
    secret = 0
    for x, share in shares.items():
        above, below = 1, 1
        for other in shares:
            if other != x:
                above = above * -other % PRIME
                below = below * (x - other) % PRIME
        secret = (secret + share * above * pow(below, -1, PRIME)) % PRIME
    return secret


def to_bytes(share: int) -> bytes:
    return share.to_bytes(BYTES, "big")


def from_bytes(data: bytes) -> int:
    """A share; what is no element of the field is a `ValueError`."""
    value = int.from_bytes(data, "big")
    if len(data) != BYTES or value >= PRIME:
        raise ValueError("not a share")
    return value
