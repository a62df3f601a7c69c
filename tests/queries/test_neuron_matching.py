"""Matching neurons: scores and assignments by hand, by brute force, and on copies of one network."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from math import log

import numpy as np
import pytest
import torch
from torch import Tensor

from fedstill.core.streams import Streams
from fedstill.queries.neuron_matching import Gathered, MatchedNeurons, Prior, match, place, scores

STREAMS = Streams(4)
USUAL = Prior(precision=0.1, gamma=1.0, limit=700)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def matched(*layers: Tensor, variance: float = 0.1, prior: Prior = USUAL, sweeps: int = 2) -> MatchedNeurons:
    trust = [torch.full((layer.shape[1],), 1 / variance, dtype=torch.float64) for layer in layers]
    return match(layers, trust, prior, sweeps, STREAMS)


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None]


def test_one_weight_by_hand() -> None:
    """Both variances 1, gamma 1, two clients with a neuron of one weight each; the first has 2, so g = 2 and G = 2.

    A second neuron of 2 is a copy: 4^2 / 3 - 2^2 / 2 + 2 log(1/1) = 10/3, against 2^2 / 2 + 2 log(1/2) = 0.61 for a new
    one; the global neuron is (2 + 2) / (1 + 1 + 1). One of -2 is new: 0 - 2 against 0.61; they become 2/2 and -2/2.
    """
    prior = Prior(precision=1.0, gamma=1.0, limit=10)
    first = Gathered(column(2.0), column(2.0), torch.ones(1, dtype=torch.float64))
    one = torch.ones(1, dtype=torch.float64)
    assert scores(column(2.0), one, first, prior, 2).tolist() == [pytest.approx([10 / 3, 2 + 2 * log(0.5)])]
    assert scores(column(-2.0), one, first, prior, 2).tolist() == [pytest.approx([-2, 2 + 2 * log(0.5)])]
    same = matched(column(2.0), column(2.0), variance=1.0, prior=prior)
    assert same.neurons.flatten().tolist() == pytest.approx([4 / 3])
    other = matched(column(2.0), column(-2.0), variance=1.0, prior=prior)
    assert sorted(other.neurons.flatten().tolist()) == pytest.approx([-1.0, 1.0])


def plain_score(neuron: Tensor, trust: Tensor, others: Gathered, prior: Prior, clients: int, number: int) -> float:
    """The formula, number by number; from the number of known neurons on they are new."""
    total = 0.0
    if number >= len(others.sums):
        total = 2 * log(prior.gamma / clients) - 2 * log(number - len(others.sums) + 1)
        for v, s in zip(neuron.tolist(), trust.tolist(), strict=True):
            total += (v * s) ** 2 / (s + prior.precision)
        return total
    count = float(others.counts[number])
    for v, s, g, G in zip(  # noqa: N806 - the formula's names
        neuron.tolist(),
        trust.tolist(),
        others.sums[number].tolist(),
        others.precisions[number].tolist(),
        strict=True,
    ):
        total += (v * s + g) ** 2 / (s + G) - g**2 / G
    return total + 2 * log(count / (clients - count))


@pytest.mark.parametrize("seed", range(4))
def test_scores_and_the_best_assignment_by_brute_force(seed: int) -> None:
    """Three neurons on two known and three new ones: the best of all 60 ways, by scores that are added one by one."""
    known = Gathered(2 * draw(2, 5, seed=seed), draw(2, 5, seed=seed + 10).abs() + 1, torch.tensor([1.0, 3.0]).double())
    layer, trust = draw(3, 5, seed=seed + 20), draw(5, seed=seed + 30).abs() + 0.1
    expected = torch.tensor(
        [[plain_score(neuron, trust, known, USUAL, 5, number) for number in range(5)] for neuron in layer]
    ).double()
    torch.testing.assert_close(scores(layer, trust, known, USUAL, 5), expected, rtol=1e-5, atol=1e-5)
    ways = {
        way: sum(float(expected[row, number]) for row, number in enumerate(way)) for way in permutations(range(5), 3)
    }
    chosen = place(layer, trust, known, USUAL, 5).tolist()
    # New neurons are numbered as they come; which of the new columns they stood in is the same to them.
    best = max(ways.values())
    rows = [row for row, number in enumerate(chosen) if number >= 2]
    assert [chosen[row] for row in rows] == list(range(2, 2 + len(rows)))
    assert ways[tuple(chosen)] == pytest.approx(best, rel=1e-5)


def test_permuted_copies_of_one_layer_match_back_to_it() -> None:
    """Four of them: each neuron is the mean of its copies, shrunk to 4 s / (4 s + s0) of it."""
    layer = draw(8, 12)
    orders = [torch.arange(8), *(torch.from_numpy(np.random.default_rng(seed).permutation(8)) for seed in (1, 2, 3))]
    found = matched(*(layer[order] for order in orders))
    assert found.neurons.shape == (8, 12)
    first = found.assigned[0]
    for order, assigned in zip(orders, found.assigned, strict=True):
        assert torch.equal(assigned, first[order])
    shrunk = layer * 40 / 40.1
    torch.testing.assert_close(found.neurons[first], shrunk)


def test_noisy_copies_match_too() -> None:
    layer, order = draw(8, 12), torch.from_numpy(np.random.default_rng(1).permutation(8))
    found = matched(layer, layer[order] + 0.05 * draw(8, 12, seed=5))
    assert torch.equal(found.assigned[1], found.assigned[0][order])


def test_layers_with_nothing_in_common_are_put_side_by_side() -> None:
    """Neurons along different axes, of a length that matters: all of both, each shrunk by s / (s + s0) alone."""
    axes = 2 * torch.eye(6, dtype=torch.float64)
    found = matched(axes[:3], axes[3:])
    assert len(found.neurons) == 6
    torch.testing.assert_close(found.neurons[torch.cat(found.assigned)], axes * 10 / 10.1)


def test_where_new_neurons_cost_too_much_the_best_matching_is_made() -> None:
    """With hardly any mass two layers of three stay three, matched by what they have in common."""
    axes = torch.eye(6, dtype=torch.float64)
    first, second = axes[:3], axes[[4, 5, 3]] + 0.5 * axes[[1, 2, 0]]
    found = matched(first, second, prior=Prior(0.1, 1e-20, 700))
    assert len(found.neurons) == 3
    assert torch.equal(found.assigned[1], found.assigned[0][[1, 2, 0]])


def test_there_are_never_more_than_the_limit() -> None:
    layers = [3 * draw(4, 20, seed=seed) for seed in range(5)]
    assert len(matched(*layers).neurons) == 20
    for limit in (4, 9):
        found = matched(*layers, prior=Prior(0.1, 1.0, limit))
        assert len(found.neurons) == limit
        assert all(len(set(assigned.tolist())) == 4 for assigned in found.assigned)


def posterior(layers: Sequence[Tensor], found: MatchedNeurons, precision: float, prior: float) -> Tensor:
    """Global neurons from an assignment, one by one."""
    rows = []
    for number in range(len(found.neurons)):
        copies = [
            layer[row]
            for layer, assigned in zip(layers, found.assigned, strict=True)
            for row in range(len(layer))
            if int(assigned[row]) == number
        ]
        assert copies, "a global neuron that nobody has"
        rows.append(torch.stack(copies).sum(dim=0) * precision / (prior + len(copies) * precision))
    return torch.stack(rows)


@pytest.mark.parametrize("sweeps", [0, 1, 4])
def test_global_neurons_are_means_of_their_copies(sweeps: int) -> None:
    """Whatever has been taken out and put back: numbers are dense, no client uses one twice."""
    base = draw(5, 6)
    layers = [base[:4] + 0.3 * draw(4, 6, seed=1), base[1:] + 0.3 * draw(4, 6, seed=2), draw(4, 6, seed=3)]
    found = matched(*layers, sweeps=sweeps)
    assert all(len(set(assigned.tolist())) == 4 for assigned in found.assigned)
    torch.testing.assert_close(found.neurons, posterior(layers, found, 10.0, 0.1))
    again = matched(*layers, sweeps=sweeps)
    assert all(torch.equal(one, other) for one, other in zip(found.assigned, again.assigned, strict=True))


def test_one_client_is_shrunk_and_nothing_else() -> None:
    layer = draw(3, 4)
    found = matched(layer)
    torch.testing.assert_close(found.neurons[found.assigned[0]], layer * 10 / 10.1)


def test_a_coordinate_of_no_precision_does_not_count() -> None:
    """The second client knows nothing of the last weight: the first one's stands, shrunk by its own precision."""
    layer = 2 * torch.eye(3, dtype=torch.float64)
    other = layer.clone()
    other[:, 2] = 100.0
    trust = [torch.full((3,), 10.0).double(), torch.tensor([10.0, 10.0, 0.0]).double()]
    found = match([layer[:2], other[:2]], trust, USUAL, 0, STREAMS)
    assert len(found.neurons) == 2
    torch.testing.assert_close(found.neurons[found.assigned[0]][:, 2], layer[:2, 2] * 10 / 10.1)
    torch.testing.assert_close(found.neurons[found.assigned[0]][:, :2], layer[:2, :2] * 20 / 20.1)
