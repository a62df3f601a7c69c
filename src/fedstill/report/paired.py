"""Two runs on the same test samples: what the samples in which they differ tell."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import comb

from fedstill.core.numbers import count, points

_LEVEL = 0.05


def paired_sentence(names: tuple[str, str], said: tuple[Sequence[int], Sequence[int]], truth: Sequence[int]) -> str:
    """McNemar's exact test of two models' predictions, in words.

    >>> paired_sentence(("a", "b"), ([1, 1, 0, 0], [1, 0, 0, 1]), [1, 1, 0, 0])
    'Of 4 test samples a alone is right in 2 and b alone in 0 (a leads by 50.0\\xa0points, exact McNemar p = 0.5): \
these test samples cannot tell them apart.'
    """
    right = [[one == true for one, true in zip(each, truth, strict=True)] for each in said]
    first = sum(a and not b for a, b in zip(*right, strict=True))
    second = sum(b and not a for a, b in zip(*right, strict=True))
    if first == second == 0:
        return f"{names[0]} and {names[1]} are right in the same of {count(len(truth), 'test sample')}."
    p = _two_sided(first, second)
    ahead = names[0] if first >= second else names[1]
    told = (
        "these test samples cannot tell them apart"
        if p >= _LEVEL
        else "more than the choice of test samples explains, but another seed may change it"
    )
    lead = "neither leads" if first == second else f"{ahead} leads by {points((first - second) / len(truth))}"
    return (
        f"Of {len(truth):,} test samples {names[0]} alone is right in {first:,} and {names[1]} alone in {second:,}"
        f" ({lead}, exact McNemar p = {p:.2g}): {told}."
    )


def _two_sided(first: int, second: int) -> float:
    """The probability that fair coins fall at least as unevenly.

    >>> _two_sided(2, 0), _two_sided(1, 1)
    (0.5, 1.0)
    """
    total = first + second
    tail = sum(comb(total, number) for number in range(min(first, second) + 1))
    return float(min(Fraction(1), Fraction(2 * tail, 2**total)))
