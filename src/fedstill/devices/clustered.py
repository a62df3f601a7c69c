"""Stratified client sampling by cluster: the cohort represents the fleet, and every client has similar replacements."""

from __future__ import annotations

import numpy as np

from fedstill.core.protocols import RoundContext
from fedstill.core.task import Tensors
from fedstill.participation.draws import luck, places
from fedstill.participation.policies import policies
from fedstill.participation.replacement import clusters
from fedstill.participation.weighted import Weighted


@policies.register("clustered")
class Clustered(Weighted):
    """Samples from every cluster in proportion to its eligible clients; uniformly within it, or weighted by battery.

    Clients without a known cluster form their own cluster.
    """

    @property
    def needs(self) -> frozenset[str]:
        return super().needs | {"clusters"}

    def choose(self, candidates: np.ndarray, fleet: Tensors, clients: int, context: RoundContext) -> np.ndarray:
        if not len(candidates):
            return candidates
        ordered = self.in_order(candidates, fleet, clients, context)
        groups, members, sizes = np.unique(clusters(fleet, ordered), return_inverse=True, return_counts=True)
        # Random numbers by cluster number, -1 included: that of one cluster does not depend on which others exist.
        lots = luck(context, "places", int(groups[-1]) + 2)[groups + 1]
        given = places(sizes, self.cohort(clients), lots)
        chosen = [ordered[members == group][: given[group]] for group in range(len(groups))]
        return np.sort(np.concatenate(chosen))
