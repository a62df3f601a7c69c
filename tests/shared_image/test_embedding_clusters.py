"""Clusters against scikit-learn's, against plain loops over whole numbers, and against themselves on more threads."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from torch import Tensor

from fedstill.core.errors import InputError, UnusableError
from fedstill.core.streams import Streams
from fedstill.shared_image import embedding_clusters
from fedstill.shared_image.embedding_clusters import cluster


def drawn(*shape: int, name: str = "points") -> Tensor:
    return torch.from_numpy(Streams(11).draw(name).standard_normal(shape)).float()


def found(points: Tensor, count: int, seed: int = 0) -> embedding_clusters.EmbeddingClusters:
    return cluster(points, count, Streams(seed).draw("clusters"))


@pytest.mark.parametrize(("samples", "width", "count"), [(60, 1, 4), (300, 5, 20), (200, 33, 50)])
def test_scikit_learn_settles_at_the_same_centres(
    samples: int, width: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = drawn(samples, width)
    ours = found(points, count)
    monkeypatch.setattr(embedding_clusters, "MOST_STEPS", 0)
    start = found(points, count).centres.numpy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what it thinks of threads on other systems
        theirs = KMeans(count, init=start, n_init=1, tol=0).fit(points.double().numpy())
    assert len(start) == count
    np.testing.assert_array_equal(ours.nearest.numpy(), theirs.labels_)
    np.testing.assert_allclose(ours.centres.numpy(), theirs.cluster_centers_, atol=1e-5)
    np.testing.assert_allclose(ours.distances.numpy(), theirs.transform(points.double()).min(axis=1), atol=1e-5)


def settled(points: Tensor, start: Tensor) -> tuple[list[list[int]], list[int], list[int]]:
    """Lloyd's steps in Python's numbers, which are whole here and never rounded, but for the means."""
    rows = [[int(x) for x in row] for row in points.tolist()]
    centres = [[int(x) for x in row] for row in start.tolist()]
    while True:
        far = [[sum((a - b) ** 2 for a, b in zip(row, centre, strict=True)) for centre in centres] for row in rows]
        own = [each.index(min(each)) for each in far]
        groups = [[row for row, mine in zip(rows, own, strict=True) if mine == k] for k in range(len(centres))]
        means = [
            [round(sum(column) / len(group)) for column in zip(*group, strict=True)] if group else centre
            for group, centre in zip(groups, centres, strict=True)
        ]
        if means == centres:
            return centres, own, [min(each) for each in far]
        centres = means


@pytest.mark.parametrize(("samples", "width", "count", "times"), [(150, 3, 20, 1), (14, 1, 4, 300)])
def test_comparing_only_what_moved_gives_what_comparing_everything_gives(
    samples: int, width: int, count: int, times: int
) -> None:
    """Few values, so that samples are often equally far from two centres, of which one has moved."""
    for seed in range(times):
        numbers = Streams(seed).draw("whole")
        points = torch.from_numpy(numbers.integers(0, 12, size=(samples, width))).double() * 60
        start = points[numbers.permutation(samples)[:count].tolist()].unique(dim=0)
        start = start[numbers.permutation(len(start)).tolist()]
        centres, nearest, squares = embedding_clusters._settle(points, start)
        assert (centres.tolist(), nearest.tolist(), squares.tolist()) == settled(points, start)


def test_a_centre_without_samples_stays_where_it_is() -> None:
    """-6, -2 and 8 are nearer to -6 than to 100; their mean is 0."""
    centres, nearest, squares = embedding_clusters._settle(
        torch.tensor([[-6.0], [-2.0], [8.0]]).double(), torch.tensor([[-6.0], [100.0]]).double()
    )
    assert centres.tolist() == [[0.0], [100.0]]
    assert nearest.tolist() == [0, 0, 0]
    assert squares.tolist() == [36.0, 4.0, 64.0]


def test_a_start_is_drawn_by_squared_distance() -> None:
    """From 0, 2 and 6: after 0, 6 follows with probability 36/40; after 2, 16/20; after 6, 0 with 36/52.

    With 900 draws about 300 begin with each, and the largest standard deviation is sqrt(0.69 * 0.31 / 300) = 0.027.
    """
    points = torch.tensor([[0.0], [2.0], [6.0]]).double()
    pairs = [
        embedding_clusters._start(points, 2, Streams(seed).draw("start")).flatten().tolist() for seed in range(900)
    ]
    for first, second, probability in [(0.0, 6.0, 0.9), (2.0, 6.0, 0.8), (6.0, 0.0, 9 / 13)]:
        following = [pair[1] for pair in pairs if pair[0] == first]
        assert len(following) == pytest.approx(300, abs=5 * 14.2)
        assert following.count(second) / len(following) == pytest.approx(probability, abs=5 * 0.027)


@pytest.mark.parametrize("width", [1, 64, 65, 700])
def test_no_distance_on_the_grid_is_rounded(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The samples that `cluster` puts on its grid, two opposite corners among them, compared in Python's numbers."""
    kept = []
    start = embedding_clusters._start
    monkeypatch.setattr(embedding_clusters, "_start", lambda points, *rest: kept.append(points) or start(points, *rest))
    found(torch.cat([torch.full((1, width), 3.0), torch.full((1, width), -3.0), drawn(8, width).clamp(-3, 3)]), 2)
    (points,) = kept
    assert torch.equal(points, points.round())
    assert points.abs().max() >= 2**18  # so fine is it at least
    rows = [[int(x) for x in row] for row in points.tolist()]
    for number, row in enumerate(rows):
        others = torch.cat([points[:number], points[number + 1 :]])
        squares, _ = embedding_clusters._closest(points[[number]], others)
        plain = [sum((a - b) ** 2 for a, b in zip(row, other, strict=True)) for other in rows if other is not row]
        assert int(squares) + sum(a * a for a in row) == min(plain)


def test_threads_do_not_matter() -> None:
    points = drawn(3000, 40)
    one = found(points, 200)
    torch.set_num_threads(2)  # put back after every test
    two = found(points, 200)
    assert torch.equal(one.nearest, two.nearest)
    assert torch.equal(one.distances, two.distances)
    assert torch.equal(one.centres, two.centres)


def test_neither_does_how_many_distances_are_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    points = drawn(500, 7)
    whole = found(points, 30)
    monkeypatch.setattr(embedding_clusters, "_AT_ONCE", 64)
    assert torch.equal(found(points, 30).distances, whole.distances)


def test_moving_and_scaling_by_powers_of_two_changes_nothing_but_the_scale() -> None:
    points = torch.from_numpy(Streams(4).draw("eighths").integers(-40, 40, size=(200, 6))).double() / 8
    near, far = found(points, 12), found(points * 1024 + 4096, 12)
    assert torch.equal(near.nearest, far.nearest)
    assert torch.equal(near.distances * 1024, far.distances)


@pytest.mark.parametrize("scale", [1e-40, 1e-30, 1e30, 1e37])
def test_very_small_and_very_large_embeddings(scale: float) -> None:
    points = torch.tensor([[0.0], [1.0], [10.0], [14.0]]) * scale
    distances = found(points, 2).distances / scale
    assert distances.tolist() == pytest.approx([0.5, 0.5, 2.0, 2.0], rel=1e-4)


def test_fewer_different_samples_than_clusters() -> None:
    points = drawn(7, 3).repeat(40, 1)
    result = found(points, 100)
    assert result.centres.shape == (7, 3)
    assert result.distances.max() == 0
    assert (result.nearest.view(40, 7) == result.nearest[:7]).all()


def test_as_many_clusters_as_samples() -> None:
    result = found(drawn(90, 4), 90)
    assert result.nearest.sort().values.tolist() == list(range(90))
    assert result.distances.max() == 0


def test_all_samples_alike() -> None:
    result = found(torch.full((5, 2), 3.25), 3)
    assert result.centres.tolist() == [[3.25, 3.25]]
    assert result.nearest.tolist() == [0] * 5


def test_one_cluster_is_the_mean() -> None:
    points = drawn(100, 3)
    mean = points.double().mean(dim=0)
    assert found(points, 1).centres[0].tolist() == pytest.approx(mean.tolist(), abs=1e-6)


def test_far_groups_each_get_a_centre_of_their_own() -> None:
    """By squared distance a group without a centre is nearly always drawn from; a uniform start misses some of 50.

    They lie on a line, 1,000 apart, and spread by 1.
    """
    groups = torch.arange(50.0)[:, None] * 1000
    points = (groups + drawn(50, 20)).reshape(-1, 1)
    for seed in range(5):
        assert found(points, 50, seed).distances.max() < 10


def test_other_streams_other_clusters() -> None:
    points = drawn(200, 3)
    assert not torch.equal(found(points, 20, 0).distances, found(points, 20, 1).distances)
    assert torch.equal(found(points, 20, 0).distances, found(points, 20, 0).distances)


@pytest.mark.parametrize(
    ("points", "count", "sentence"),
    [
        (torch.zeros(3, 2), 4, "3 samples cannot be put into 4 clusters"),
        (torch.zeros(3, 2), 0, "3 samples cannot be put into 0 clusters"),
        (torch.zeros(3), 1, "not one of shape (3,)"),
        (torch.zeros(0, 2), 1, "not one of shape (0, 2)"),
    ],
    ids=["too-many", "none", "no-table", "empty"],
)
def test_what_cannot_be_clustered(points: Tensor, count: int, sentence: str) -> None:
    with pytest.raises(InputError) as refusal:
        found(points, count)
    assert sentence in str(refusal.value)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_embeddings_that_are_not_numbers(value: float) -> None:
    points = torch.zeros(3, 2)
    points[1, 1] = value
    with pytest.raises(UnusableError, match="not all finite"):
        found(points, 2)
