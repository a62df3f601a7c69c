"""Matching of the neurons of several hidden layers, by the posterior of a Bayesian nonparametric model.

*Bayesian Nonparametric Federated Learning of Neural Networks*, Yurochkin et al., 2019, https://arxiv.org/abs/1905.12022

A client's neuron v (incoming weights, bias, outgoing weights) is a noisy copy of a global one, and clients choose
global neurons by an Indian buffet process of mass gamma:

    theta_i ~ Normal(0, sigma0^2),   v_jl ~ Normal(theta_i, sigma_j^2) where neuron l of client j is of theta_i

With the assignments of the other clients fixed, the best assignment of client j maximises a sum over its neurons, which
the Hungarian algorithm solves. Below is twice the log posterior, up to constants, of making neuron l a copy of global
neuron i, for J clients. m_i, g_i and G_i are over the others' copies of it: their number, the sum of v / sigma^2, and 1
/ sigma0^2 plus the sum of 1 / sigma^2:

    |v / sigma_j^2 + g_i|^2 / (1 / sigma_j^2 + G_i) - |g_i|^2 / G_i + 2 log(m_i / (J - m_i))
    |v / sigma_j^2|^2 / (1 / sigma_j^2 + 1 / sigma0^2) - 2 log(k) + 2 log(gamma / J)          of the k-th new one

theta_i is then g_i / G_i, over all copies. Precisions 1 / sigma_j^2 are given per coordinate.

The authors' code has log(m_i / (J - m_i)) once and m_i cut off at 10; this implementation follows the article.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log

import torch
from torch import Tensor

from fedstill.core.streams import Streams


@dataclass(frozen=True)
class Prior:
    """The prior of global neurons, and their maximum number."""

    precision: float  # 1 / sigma0^2
    gamma: float
    limit: int


@dataclass(frozen=True)
class MatchedNeurons:
    """Global neurons, one row each, and for every client the global neuron of each of its own."""

    neurons: Tensor
    assigned: list[Tensor]


def match(
    neurons: Sequence[Tensor], precisions: Sequence[Tensor], prior: Prior, sweeps: int, streams: Streams
) -> MatchedNeurons:
    """Match each client's neurons in turn; then repeat for all clients in random order, as often as configured."""
    layers = [layer.double() for layer in neurons]
    trust = [precision.double() for precision in precisions]
    assigned: dict[int, Tensor] = {}
    turns = list(range(len(layers)))
    for sweep in range(sweeps):
        turns += streams.draw("sweep", sweep).permutation(len(layers)).tolist()
    for client in turns:
        assigned = _compact({other: places for other, places in assigned.items() if other != client})
        gathered = _gather(layers, trust, assigned, prior)
        assigned[client] = place(layers[client], trust[client], gathered, prior, len(layers))
    whole = _gather(layers, trust, assigned, prior)
    return MatchedNeurons(whole.sums / whole.precisions, [assigned[client] for client in range(len(layers))])


@dataclass(frozen=True)
class Gathered:
    """For every global neuron: g, the precision-weighted sum of its copies; G, its precision; m, their number."""

    sums: Tensor
    precisions: Tensor
    counts: Tensor


def place(layer: Tensor, precision: Tensor, others: Gathered, prior: Prior, clients: int) -> Tensor:
    """The best global neuron for each neuron of a client; numbers from `len(others.sums)` on are new ones."""
    from scipy.optimize import linear_sum_assignment  # type: ignore[import-untyped]  # slow to import

    known = len(others.sums)
    rows, columns = linear_sum_assignment(scores(layer, precision, others, prior, clients).numpy(), maximize=True)
    places, fresh = torch.empty(len(layer), dtype=torch.int64), known
    for row, column in zip(rows.tolist(), columns.tolist(), strict=True):
        places[row] = column if column < known else fresh
        fresh += column >= known
    return places


def scores(layer: Tensor, precision: Tensor, others: Gathered, prior: Prior, clients: int) -> Tensor:
    """One row per neuron of a client, one column per existing global neuron and then per possible new one."""
    weighted = layer * precision
    joined = 1.0 / (precision + others.precisions)
    old = weighted.square() @ joined.T + 2 * weighted @ (others.sums * joined).T
    old = old + (others.sums.square() * (joined - 1.0 / others.precisions)).sum(dim=1)
    old = old + 2 * (others.counts / (clients - others.counts)).log()
    added = min(len(layer), prior.limit - len(others.sums))
    new = (weighted.square() / (precision + prior.precision)).sum(dim=1, keepdim=True) + 2 * log(prior.gamma / clients)
    return torch.cat([old, new - 2 * torch.arange(1, added + 1, dtype=torch.float64).log()], dim=1)


def _gather(
    layers: Sequence[Tensor], trust: Sequence[Tensor], assigned: Mapping[int, Tensor], prior: Prior
) -> Gathered:
    size = max((int(places.max()) + 1 for places in assigned.values()), default=0)
    sums = torch.zeros(size, layers[0].shape[1], dtype=torch.float64)
    precisions, counts = torch.full_like(sums, prior.precision), torch.zeros(size, dtype=torch.float64)
    for client in sorted(assigned):
        places = assigned[client]
        sums[places] += layers[client] * trust[client]
        precisions[places] += trust[client]
        counts[places] += 1
    return Gathered(sums, precisions, counts)


def _compact(assigned: Mapping[int, Tensor]) -> dict[int, Tensor]:
    """The same assignment without unused numbers."""
    if not assigned:
        return {}
    used = torch.cat(list(assigned.values())).unique()
    return {client: torch.searchsorted(used, places) for client, places in assigned.items()}
