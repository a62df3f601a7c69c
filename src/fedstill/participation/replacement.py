"""Replacement clients for clients that failed, with similar data if possible."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Sequence

import numpy as np

from fedstill.core.protocols import RoundContext
from fedstill.core.task import Tensors
from fedstill.participation.draws import drawn, luck


def clusters(fleet: Tensors, ids: np.ndarray) -> np.ndarray:
    """The clusters of these clients; -1 if unknown."""
    if "cluster" not in fleet:
        return np.full(len(ids), -1)
    known: np.ndarray = fleet["cluster"].numpy()[ids]
    return known


def choose_replacements(
    failed: Sequence[int],
    candidates: np.ndarray,
    fleet: Tensors,
    weights: np.ndarray,
    context: RoundContext,
    *,
    sampled: Collection[int] = (),
) -> dict[int, int]:
    """A replacement for each failed client, as far as candidates are available; no client replaces two.

    `candidates` are the clients that the policy finds eligible, `weights` their weights in the draw. Clients that
    failed or were `sampled` in this round are excluded. Each failed client first gets a replacement from its own
    cluster; only then are the others drawn from all clusters, so that none takes another's most similar candidate.
    """
    if not len(failed) or not len(candidates):
        return {}
    free = ~np.isin(candidates, [*failed, *sampled])
    order = drawn(candidates[free], weights[free], int(free.sum()), luck(context, "replace", context.clients))
    queues: defaultdict[int, deque[int]] = defaultdict(deque)
    for candidate, cluster in zip(order.tolist(), clusters(fleet, order).tolist(), strict=True):
        queues[cluster].append(candidate)
    missing = sorted(set(failed))
    found: dict[int, int] = {}
    for client, cluster in zip(missing, clusters(fleet, np.asarray(missing)).tolist(), strict=True):
        if queues[cluster]:
            found[client] = queues[cluster].popleft()
    taken = set(found.values())
    rest = deque(candidate for candidate in order.tolist() if candidate not in taken)
    for client in missing:
        if client not in found and rest:
            found[client] = rest.popleft()
    return dict(sorted(found.items()))
