"""Everything that leaves a client is declared, by name pattern, kind and receiver; anything else is an error."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import pairwise
from typing import Literal

from torch import Tensor

from fedstill.core.errors import EndsRunError
from fedstill.core.numbers import listed

Kind = Literal["parameters", "logits", "features", "labels", "inputs", "statistics", "metrics"]


@dataclass(frozen=True)
class Egress:
    """One line of the manifest that a site's data officer reads."""

    name: str  # a pattern, e.g. "parameters/*"
    kind: Kind
    why: str
    to: Literal["server", "peers"] = "server"
    by_class: bool = False  # True: figures of each class, behind which there may be few samples
    optional: bool = False  # True: a site whose policy forbids it leaves it out of its replies, and takes part
    masked: bool = False  # True: uniformly random numbers to anyone who sees them alone; only their sum tells anything


EVERY_ROUND = "every round"
_NAMED = 8  # rounds that are listed one by one


def in_rounds(due: Sequence[int], rounds: int) -> str:
    """Rounds, which are counted from 0 in code and from 1 for readers, in words.

    >>> in_rounds(range(0, 30, 5), 30)
    'in round 1 and every 5th after it (6 of 30)'
    >>> in_rounds([0, 4, 9, 14], 15), in_rounds(range(10), 11), in_rounds([0], 4)
    ('in rounds 1, 5, 10 and 15 (4 of 15)', 'in rounds 1 to 10 (10 of 11)', 'in round 1 (1 of 4)')
    >>> in_rounds(range(4), 4), in_rounds([0, *range(3, 100, 4)], 100)
    ('every round', 'in rounds 1, 4, 8 and 23 more up to 100 (26 of 100)')
    """
    if len(due) == rounds:
        return EVERY_ROUND
    share, numbers = f"({len(due)} of {rounds})", [str(round + 1) for round in due]
    steps = {later - earlier for earlier, later in pairwise(due)}
    if len(due) == 1:
        return f"in round {numbers[0]} {share}"
    if steps == {1}:
        return f"in rounds {numbers[0]} to {numbers[-1]} {share}"
    if len(steps) == 1 and due[-1] + next(iter(steps)) >= rounds:
        return f"in round {numbers[0]} and every {_ordinal(next(iter(steps)))} after it {share}"
    if len(due) <= _NAMED:
        return f"in rounds {listed(numbers)} {share}"
    return f"in rounds {listed([*numbers[:3], f'{len(due) - 3} more up to {numbers[-1]}'])} {share}"


def _ordinal(number: int) -> str:
    """A number's place in an order.

    >>> [_ordinal(number) for number in (2, 3, 5, 11, 21)]
    ['2nd', '3rd', '5th', '11th', '21st']
    """
    suffix = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{suffix}"


class UndeclaredEgressError(EndsRunError):
    """A reply held a tensor that its exchange never declared; the reply is not sent, and the run stops."""


def check_egress(message: Mapping[str, Tensor], declared: Iterable[Egress], exchange: str) -> None:
    patterns = tuple(line.name for line in declared)
    name = _first_undeclared(tuple(message), patterns)
    if name is not None:
        raise UndeclaredEgressError(
            f"the exchange {exchange!r} tried to send {name!r}, which it does not declare"
            f" (declared: {', '.join(patterns) or 'nothing'}): add an Egress line or do not send it"
        )


@lru_cache(maxsize=64)  # the replies of a round have the same names
def _first_undeclared(names: tuple[str, ...], patterns: tuple[str, ...]) -> str | None:
    return next((name for name in names if not any(fnmatchcase(name, pattern) for pattern in patterns)), None)
