from __future__ import annotations

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from fedstill.core.errors import InputError
from fedstill.core.protocols import RoundContext
from fedstill.core.streams import Streams
from fedstill.devices.clusters import Clusters, grouped, numbered, standardised


def context(round: int = 0, clients: int = 8) -> RoundContext:
    return RoundContext(round, 100, clients, "statistics", Streams(0).at("round", round, "statistics"))


def planted(count: int, each: int = 8, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Blobs on a circle of radius 1, in mixed order; the first lies askew, so that both columns tell blobs apart."""
    generator = Streams(seed).draw("blobs")
    truth = generator.permutation(np.repeat(np.arange(count), each))
    angles = 2 * np.pi * truth / count + 0.7
    points = np.stack([np.cos(angles), np.sin(angles)], axis=1) + generator.normal(0, 0.05, (len(truth), 2))
    return points, truth


@pytest.mark.parametrize("count", [2, 3, 4, 6, 8])
def test_the_planted_number_is_found(count: int) -> None:
    points, truth = planted(count, seed=count)
    found = grouped(points, None, 8, 0)
    assert found.tolist() == numbered(truth).tolist()


def test_a_given_number_is_kept() -> None:
    points, _ = planted(4)
    assert len(set(grouped(points, 3, 8, 0))) == 3
    assert set(grouped(points, 1, 8, 0)) == {0}


def test_units_do_not_matter() -> None:
    """The second column is a thousand times larger and says nothing; unscaled, it alone would decide."""
    generator = Streams(0).draw("units")
    truth = np.arange(40) % 2
    table = np.stack([truth + generator.normal(0, 0.01, 40), 1000 * generator.random(40)], axis=1)
    first = grouped(table, 2, 8, 0)
    assert first.tolist() == grouped(table * [1000, 0.001] + [5, -7], 2, 8, 0).tolist()


def test_columns_of_equal_numbers_count_for_nothing() -> None:
    table = np.array([[0.1, 1.0], [0.1, 2.0], [0.1, 6.0]])
    assert standardised(table)[:, 0].tolist() == [0, 0, 0]
    assert standardised(table)[:, 1] == pytest.approx(np.array([-2, -1, 3]) / np.sqrt(14 / 3))


@pytest.mark.parametrize(
    ("rows", "number", "expected"),
    [
        ([[1.0]], 4, [0]),
        ([[1.0], [1.0], [1.0]], 3, [0, 0, 0]),
        ([[1.0], [2.0], [1.0]], 3, [0, 1, 0]),
        ([[1.0], [2.0]], None, [0, 0]),  # two alone: no silhouette
        ([[5.0], [5.0], [5.0], [5.0]], None, [0, 0, 0, 0]),
        ([[1.0], [1.1], [9.0]], None, [0, 0, 1]),
    ],
    ids=str,
)
def test_too_few_for_so_many_clusters(rows: list[list[float]], number: int | None, expected: list[int]) -> None:
    assert grouped(np.array(rows), number, 8, 0).tolist() == expected


def test_numbers_follow_first_members_and_the_seed_does_not_matter_where_clusters_are_clear() -> None:
    points, _ = planted(4, seed=2)
    for seed in range(5):
        found = grouped(points, 4, 8, seed)
        firsts = [found.tolist().index(cluster) for cluster in range(4)]
        assert firsts == sorted(firsts)
        assert found.tolist() == grouped(points, 4, 8, 0).tolist()


def test_a_tie_of_silhouettes_goes_to_davies_bouldin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three numbers of clusters, within 0.01 of the best but for the first; of the other two the lower index."""
    import sklearn.metrics

    points, _ = planted(4)
    silhouettes = {2: 0.70, 3: 0.80, 4: 0.805}
    indices = {2: 0.1, 3: 0.2, 4: 0.3}
    monkeypatch.setattr(sklearn.metrics, "silhouette_score", lambda _, labels: silhouettes[len(set(labels))])
    monkeypatch.setattr(sklearn.metrics, "davies_bouldin_score", lambda _, labels: indices[len(set(labels))])
    assert len(set(grouped(points, None, 4, 0))) == 3


def test_many_clients_are_looked_at_in_part() -> None:
    points, truth = planted(3, each=2000)
    assert grouped(points, None, 4, 0).tolist() == numbered(truth).tolist()


def known(clusters: Clusters, heard: list[int], clients: int = 8) -> dict[str, torch.Tensor]:
    fleet = dict(clusters.start(clients, 10))
    fleet["statistics"] = fleet["statistics"].clone()
    for client in heard:
        fleet["statistics"][client] = float(client % 2) + torch.tensor([0.01 * client, 0.02 * client])
    return fleet


def test_assigning_leaves_the_unheard_unknown() -> None:
    clusters = Clusters(number=2)
    after = clusters.assign(known(clusters, [1, 2, 4, 5]), context())
    assert after["cluster"].tolist() == [-1, 0, 1, -1, 1, 0, -1, -1]
    assert after["cluster"].dtype == torch.int64
    assert clusters.assign(known(clusters, []), context())["cluster"].tolist() == [-1] * 8


def test_newcomers_are_asked_when_reached_and_everybody_again_only_where_that_is_wanted() -> None:
    everyone = np.arange(8)
    for every, expected in ((None, []), (5, [5, 10, 15])):
        clusters = Clusters(number=2, every=every)
        first = clusters.survey(clusters.start(8, 10), everyone, 10, context(0))
        assert first is not None
        assert first.clients == list(range(8))
        fleet = clusters.assign(known(clusters, [0, 1, 2, 3, 4]), context())
        again = {round: clusters.survey(fleet, everyone[:7], 10, context(round)) for round in range(1, 18)}
        whole = list(range(7))
        assert [round for round, survey in again.items() if survey and survey.clients == whole] == expected
        assert all(survey is not None and survey.clients in (whole, [5, 6]) for survey in again.values())
        assert clusters.survey(fleet, everyone[:5], 10, context(1)) is None


def test_until_somebody_answers_everyone_is_asked() -> None:
    clusters = Clusters(number=2)
    survey = clusters.survey(clusters.start(8, 10), np.array([3, 5]), 10, context(4))
    assert survey is not None
    assert survey.clients == [3, 5]
    assert clusters.survey(clusters.start(8, 10), np.array([], dtype=np.int64), 10, context(4)) is None


def test_more_clusters_than_clients_are_refused() -> None:
    Clusters(number=5).check(5)
    Clusters().check(1)
    with pytest.raises(InputError, match=r"clusters\.number is 6, but there are only 5 clients"):
        Clusters(number=6).check(5)


def test_labels_as_statistics() -> None:
    clusters = Clusters(number=2, statistics="labels")
    assert clusters.needs == {"labels"}
    assert Clusters().needs == frozenset()
    assert clusters.start(3, 10)["statistics"].shape == (3, 10)
    assert Clusters(statistics=["mean"]).start(3, 10)["statistics"].shape == (3, 1)


@pytest.mark.parametrize(
    "given",
    [
        {"number": 0},
        {"most": 1},
        {"statistics": []},
        {"statistics": ["mean", "mean"]},
        {"statistics": ["median"]},
        {"statistics": "mean"},
        {"noise": -1},
        {"every": 0},
        {"kind": "k-means"},
    ],
    ids=str,
)
def test_settings_that_make_no_sense_are_refused(given: dict) -> None:
    with pytest.raises(ValidationError):
        Clusters(**given)


def test_settings_survive_being_written_out() -> None:
    for clusters in (Clusters(), Clusters(number=4, statistics="labels"), Clusters(statistics=("std", "skewness"))):
        assert Clusters.model_validate(clusters.model_dump(mode="json")) == clusters
