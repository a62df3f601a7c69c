"""Who stands in for those who are lost: somebody with similar data, where there is one."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Sequence

import numpy as np

from fedstill.core.protocols import RoundContext
from fedstill.core.task import Tensors
from fedstill.participation.draws import drawn, luck


def clusters(fleet: Tensors, ids: np.ndarray) -> np.ndarray:
    """The clusters of these clients; -1 where none is known."""
    if "cluster" not in fleet:
        return np.full(len(ids), -1)
    known: np.ndarray = fleet["cluster"].numpy()[ids]
    return known


def replacements(
    lost: Sequence[int],
    candidates: np.ndarray,
    fleet: Tensors,
    weights: np.ndarray,
    context: RoundContext,
    *,
    asked: Collection[int] = (),
) -> dict[int, int]:
    """A substitute for each of the lost, as far as there are any; nobody stands in twice.

    `candidates` are those whom the policy finds eligible, `weights` their chances in the draw. Whoever is lost or was
    `asked` in this round is not among the substitutes. First everyone of the lost gets somebody of the same cluster;
    only then are those left over drawn from all, so that nobody takes another's nearest peer.
    """
    if not len(lost) or not len(candidates):
        return {}
    free = ~np.isin(candidates, [*lost, *asked])
    order = drawn(candidates[free], weights[free], int(free.sum()), luck(context, "replace", context.clients))
    queues: defaultdict[int, deque[int]] = defaultdict(deque)
    for substitute, cluster in zip(order.tolist(), clusters(fleet, order).tolist(), strict=True):
        queues[cluster].append(substitute)
    gone = sorted(set(lost))
    found: dict[int, int] = {}
    for client, cluster in zip(gone, clusters(fleet, np.asarray(gone)).tolist(), strict=True):
        if queues[cluster]:
            found[client] = queues[cluster].popleft()
    taken = set(found.values())
    rest = deque(substitute for substitute in order.tolist() if substitute not in taken)
    for client in gone:
        if client not in found and rest:
            found[client] = rest.popleft()
    return dict(sorted(found.items()))
