"""Random draws for a whole fleet, indexed by client: a client's draw does not depend on which others take part."""

from __future__ import annotations

import numpy as np

from fedstill.core.protocols import RoundContext


def luck(context: RoundContext, name: str, size: int) -> np.ndarray:
    """The random numbers of all clients in the draw of that name: standard exponential, the smallest is drawn first."""
    return context.streams.draw(name).exponential(size=size)


def drawn(ids: np.ndarray, weights: np.ndarray, number: int, lots: np.ndarray) -> np.ndarray:
    """At most `number` of these clients, in the order drawn; `lots` are the random numbers of all clients.

    This is equivalent to weighted sampling without replacement: an exponential number divided by a weight is the
    waiting time of an event with that rate, and the events occur in that order.

    >>> lots = np.array([0.9, 0.3, 0.5, 0.1])
    >>> drawn(np.array([0, 1, 2]), np.array([9.0, 1.0, 1.0]), 2, lots).tolist()
    [0, 1]
    """
    return ids[np.argsort(lots[ids] / weights, kind="stable")[:number]]


def places(sizes: np.ndarray, number: int, lots: np.ndarray) -> np.ndarray:
    """The number of the `number` places that each group gets: in proportion to its size, and at least one.

    Integer parts are assigned first, then the largest remainders, with ties broken at random. A group whose part would
    be less than one gets one, and the others share the rest, so no group gets more places than it has members. With
    fewer places than groups, groups are drawn with probability proportional to size, for one place each: by largest
    remainder small groups would never get one.

    >>> places(np.array([12, 7, 1]), 10, np.zeros(3)).tolist()  # parts of 6, 3.5 and 0.5; then 9 for 12 and 7
    [6, 3, 1]
    """
    number = min(number, int(sizes.sum()))
    given = np.zeros(len(sizes), dtype=np.int64)
    if number < len(sizes):
        given[drawn(np.arange(len(sizes)), sizes, number, lots)] = 1
        return given
    sharing = np.ones(len(sizes), dtype=bool)
    while True:
        left, total = number - int(given.sum()), int(sizes[sharing].sum())
        small = sharing & (left * sizes < total)
        if not small.any():
            break
        given[small] = 1
        sharing &= ~small
    groups = np.flatnonzero(sharing)
    given[groups], remainders = np.divmod(left * sizes[groups], max(total, 1))
    by_remainder = groups[np.lexsort((lots[groups], -remainders))]
    given[by_remainder[: number - int(given.sum())]] += 1
    return given
