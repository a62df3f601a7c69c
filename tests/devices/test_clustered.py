from __future__ import annotations

from collections import Counter

import numpy as np
import torch

from fedstill.core.protocols import RoundContext
from fedstill.core.streams import Streams
from fedstill.devices.clustered import Clustered


def context(round: int, clients: int) -> RoundContext:
    return RoundContext(round, 1000, clients, "select", Streams(0).at("round", round, "select"))


def test_clusters_share_the_places() -> None:
    """20 of 40 with clusters of 20, 10, 6 and 4: 10, 5, 3 and 2, in every round."""
    cluster = torch.tensor([0] * 20 + [1] * 10 + [2] * 6 + [-1] * 4)
    policy = Clustered(number=20)
    for round in range(30):
        chosen = policy.choose(np.arange(40), {"cluster": cluster}, 40, context(round, 40))
        assert Counter(cluster[chosen].tolist()) == {0: 10, 1: 5, 2: 3, -1: 2}


def test_places_go_by_those_who_may_be_asked() -> None:
    """Of cluster 1 only one of ten is eligible: it gets one place, and cluster 0 the other five."""
    cluster = torch.tensor([0] * 10 + [1] * 10)
    chosen = Clustered(number=6).choose(np.arange(11), {"cluster": cluster}, 20, context(0, 20))
    assert Counter(cluster[chosen].tolist()) == {0: 5, 1: 1}


def test_within_a_cluster_the_draw_is_weighted_by_battery_if_asked_for() -> None:
    """Clusters of two, one place each; full against 0.2, which counts 0.05 + 0.95 * 0.2 = 0.24: 24 / 124 of the time.

    1,000 rounds: 194, give or take 4 * 12.5; evenly, 500, give or take 4 * 16.
    """
    fleet = {
        "cluster": torch.tensor([0, 0, 1, 1]),
        "charge": torch.tensor([1.0, 0.2, 0.2, 1.0], dtype=torch.float64),
        "capacity": torch.ones(4, dtype=torch.float64),
    }
    weak = {
        aware: Counter(
            client
            for round in range(1000)
            for client in Clustered(number=2, battery_aware=aware)
            .choose(np.arange(4), fleet, 4, context(round, 4))
            .tolist()
        )
        for aware in (True, False)
    }
    assert all(abs(weak[True][client] - 194) < 50 for client in (1, 2))
    assert all(abs(weak[False][client] - 500) < 64 for client in (1, 2))


def test_before_anyone_is_heard_all_are_one_cluster() -> None:
    chosen = Clustered(number=3).choose(np.arange(5), {}, 5, context(0, 5))
    assert len(chosen) == 3


def test_with_fewer_places_than_clusters_everyone_is_asked_some_day() -> None:
    cluster = torch.tensor([0] * 20 + [1, 2, 3])
    policy = Clustered(number=2)
    rounds = [
        policy.choose(np.arange(23), {"cluster": cluster}, 23, context(round, 23)).tolist() for round in range(400)
    ]
    assert all(len(set(cluster[chosen].tolist())) == 2 for chosen in rounds)
    assert {client for chosen in rounds for client in chosen} == set(range(23))


def test_a_clusters_luck_does_not_depend_on_the_others() -> None:
    """Who is chosen of cluster 5, given its places, is the same whether cluster 0 is there or not."""
    cluster = torch.tensor([0] * 10 + [5] * 10)
    for round in range(20):
        both = Clustered(number=6).choose(np.arange(20), {"cluster": cluster}, 20, context(round, 20))
        alone = Clustered(number=3).choose(np.arange(10, 20), {"cluster": cluster}, 20, context(round, 20))
        assert [client for client in both.tolist() if client >= 10] == alone.tolist()


def test_equal_claims_are_settled_by_each_clusters_own_luck() -> None:
    """Three places for the unknown and cluster 0, ten each: the luckier gets two. Luck 0 is that of the unknown."""
    state = {"cluster": torch.tensor([-1] * 10 + [0] * 10 + [4])}
    unknown = []
    for round in range(40):
        luck = context(round, 21).streams.draw("places").exponential(size=2)
        chosen = Clustered(number=3).choose(np.arange(20), state, 21, context(round, 21))
        unknown.append(int((chosen < 10).sum()))
        assert unknown[-1] == (2 if luck[0] < luck[1] else 1)
    assert set(unknown) == {1, 2}
