from __future__ import annotations

from collections import Counter

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedstill.core.protocols import RoundContext
from fedstill.core.streams import Streams
from fedstill.participation.replacement import choose_replacements
from fedstill.participation.weighted import BatteryAware


def context(round: int = 0, clients: int = 12) -> RoundContext:
    return RoundContext(round, 1000, clients, "select", Streams(0).at("round", round, "select"))


def fleet(*clusters: int) -> dict[str, torch.Tensor]:
    return {"cluster": torch.tensor(clusters)}


def evenly(candidates: np.ndarray) -> np.ndarray:
    return np.ones(len(candidates))


def test_the_same_cluster_first_then_others() -> None:
    """Lost 0 and 1 of cluster 0, with one peer left (4); lost 2 of cluster 1, with one peer (5); 6 is of neither."""
    state = fleet(0, 0, 1, 1, 0, 1, 2)
    candidates = np.array([4, 5, 6])
    for round in range(20):
        found = choose_replacements([2, 1, 0], candidates, state, evenly(candidates), context(round, 7))
        assert found == {0: 4, 1: 6, 2: 5}


def test_nobody_takes_anothers_peer() -> None:
    """Lost 0 has no peer; lost 1 has one, 2, who must not go to 0 though 0 comes first."""
    candidates = np.array([2, 3])
    for round in range(20):
        found = choose_replacements([0, 1], candidates, fleet(0, 1, 1, 2), evenly(candidates), context(round, 4))
        assert found == {0: 3, 1: 2}


def test_too_few_or_none() -> None:
    candidates = np.array([5])
    assert len(choose_replacements([0, 1, 2], candidates, {}, evenly(candidates), context())) == 1
    assert choose_replacements([0], candidates[:0], {}, evenly(candidates[:0]), context()) == {}
    assert choose_replacements([], candidates, {}, evenly(candidates), context()) == {}
    assert choose_replacements([0], candidates, {}, evenly(candidates), context(), sampled=[0, 5]) == {}


def test_substitutes_are_drawn_by_weight() -> None:
    """Weights 1 and 3 for one place: a quarter of 2,000 rounds, give or take 4 * 19."""
    candidates = np.array([3, 8])
    counts = Counter(
        choose_replacements([0], candidates, {}, np.array([1.0, 3.0]), context(round))[0] for round in range(2000)
    )
    assert abs(counts[3] - 500) < 78


def test_the_order_of_losses_does_not_matter() -> None:
    state = fleet(*(client % 3 for client in range(12)))
    candidates = np.arange(5, 12)
    one = choose_replacements([4, 0, 3], candidates, state, evenly(candidates), context(7))
    other = choose_replacements([0, 3, 4], candidates, state, evenly(candidates), context(7))
    assert one == other
    assert list(one) == [0, 3, 4]


@given(
    clusters=st.lists(st.integers(-1, 3), min_size=1, max_size=30),
    levels=st.data(),
    round=st.integers(0, 100),
)
@settings(deadline=None, max_examples=80)
def test_no_participant_twice_and_nobody_below_the_threshold(
    clusters: list[int], levels: st.DataObject, round: int
) -> None:
    """Candidates are whom the policy finds eligible, those already asked among them: they must not come up again."""
    clients = len(clusters)
    each = levels.draw(st.lists(st.floats(0, 1), min_size=clients, max_size=clients))
    asked = levels.draw(st.sets(st.integers(0, clients - 1)))
    lost = levels.draw(st.sets(st.sampled_from(sorted(asked)))) if asked else set()
    state = {
        **fleet(*clusters),
        "charge": torch.tensor(each, dtype=torch.float64),
        "capacity": torch.ones(clients, dtype=torch.float64),
    }
    policy = BatteryAware(number=1, threshold=0.3)
    candidates = policy.eligible(state, np.arange(clients))
    weights = policy.weights(state, candidates)
    found = choose_replacements(sorted(lost), candidates, state, weights, context(round, clients), sampled=asked)
    free = set(candidates.tolist()) - asked
    assert len(set(found.values())) == len(found) == min(len(lost), len(free))
    assert set(found) <= lost
    assert set(found.values()) <= free
    assert all(each[substitute] >= 0.3 for substitute in found.values())
    for client, substitute in found.items():
        if clusters[client] != clusters[substitute]:  # then no peer was left over
            left = [peer for peer in free - set(found.values()) if clusters[peer] == clusters[client]]
            assert left == []
