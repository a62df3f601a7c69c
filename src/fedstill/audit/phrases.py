"""How an audit's sentences name things and count them: always in figures, so that parts and wholes read alike."""

from __future__ import annotations

from collections.abc import Sequence

from fedstill.audit.verdicts import PairVerdict
from fedstill.core.numbers import listed

NAMED = 4  # how many examples a sentence gives


def named(names: Sequence[str], most: int = NAMED) -> str:
    """The first few of a list, and how many more there are.

    >>> named(["a", "b", "c"], most=2)
    'a, b and 1 more'
    """
    if len(names) <= most:
        return listed(names)
    return f"{', '.join(names[:most])} and {len(names) - most} more"


def called(pair: PairVerdict) -> str:
    return f"{pair.teacher} with {pair.objective}"


def part(some: int, total: int, what: str) -> str:
    """Some of several things.

    >>> part(2, 3, "pair"), part(1, 1, "pair"), part(0, 2, "pair")
    ('2 of 3 pairs', 'the only pair', '0 of 2 pairs')
    """
    if some == total == 1:
        return f"the only {what}"
    return f"{some:,} of {total:,} {what}{'' if total == 1 else 's'}"


def every(total: int, what: str) -> str:
    """All of several things.

    >>> every(1, "pair"), every(2, "pair"), every(12, "pair")
    ('the only pair', 'both pairs', 'all 12 pairs')
    """
    return f"the only {what}" if total == 1 else f"both {what}s" if total == 2 else f"all {total:,} {what}s"


def be(number: int) -> str:
    """The verb after so many things.

    >>> be(1), be(0), be(2)
    ('is', 'are', 'are')
    """
    return "is" if number == 1 else "are"


def among_best(some: Sequence[PairVerdict], top: Sequence[PairVerdict]) -> str:
    """How many of the best students these are."""
    return "the best student" if len(top) == 1 else f"{len(some)} of the best {len(top)} students"
