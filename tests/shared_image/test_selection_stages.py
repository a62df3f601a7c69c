"""The stages of selection, worked by hand and against plain loops written from the published listings."""

from __future__ import annotations

import math
from typing import get_args

import pytest
import torch
import torch.nn.functional as F

from fedstill.core.streams import Streams
from fedstill.shared_image.embedding_clusters import cluster
from fedstill.shared_image.proxy_selection import (
    Drop,
    Heuristic,
    Scope,
    Selection,
    Sureness,
    balance_classes,
    prune_by_sureness,
    sureness,
)

from .pools import pool

HERE = Streams(0)


# By hand ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("heuristic", "factor", "expected"),
    [
        ("hard", 1.0, [2, 4, 6, 7, 8]),
        ("easy", 1.0, [0, 1, 3, 5, 8]),
        ("mixed", 1.0, [0, 2, 4, 7, 8]),
        ("hard", 0.5, [2, 4, 5, 6, 7]),
        ("hard", 0.0, [2, 4, 5, 6, 7]),
        ("easy", 0.0, [0, 1, 3, 5, 8]),
        ("mixed", 0.0, [0, 3, 4, 6, 7]),
    ],
)
def test_balancing_by_hand(heuristic: Heuristic, factor: float, expected: list[int]) -> None:
    """Five of nine rows in three classes.

        row       0    1    2    3    4    5    6    7    8
        class     0    0    0    1    1    1    1    1    2
        distance  0.1  0.5  0.6  0.2  0.8  0.55 0.7  0.9  0.3

    Factor 1: floor(5/3) = 1 of each class, and two more of all.
        hard   2, 7, 8 and then 0.8 (4), 0.7 (6)
        easy   0, 3, 8 and then 0.5 (1), 0.55 (5)
        mixed  one of each class, odd, so the hardest: 2, 7, 8; then of what remains the hardest 4 and the easiest 0
    Factor 0.5: floor(2.5/3) = 0 of each, as with factor 0.
        hard   0.9, 0.8, 0.7, 0.6, 0.55: rows 7, 4, 6, 2, 5
        easy   0.1, 0.2, 0.3, 0.5, 0.55: rows 0, 3, 8, 1, 5
        mixed  7, 4, 6 and 0, 3
    """
    distances = torch.tensor([0.1, 0.5, 0.6, 0.2, 0.8, 0.55, 0.7, 0.9, 0.3])
    classes = torch.tensor([0, 0, 0, 1, 1, 1, 1, 1, 2])
    assert balance_classes(distances, classes, 5, factor, heuristic).tolist() == expected


def test_a_balancing_factor_is_a_decimal_number() -> None:
    """200 / 2 * 0.29 is 29, and 28.999999999999996 in doubles.

    Class 0 holds the 300 nearest rows, so that what the classes leave open is filled with them, and class 1 gives no
    more than its lower bound.
    """
    distances = torch.arange(400.0)
    classes = torch.tensor([0] * 300 + [1] * 100)
    chosen = balance_classes(distances, classes, 200, 0.29, "easy")
    assert int((chosen >= 300).sum()) == 29


@pytest.mark.parametrize(
    ("drop", "scope", "left"),
    [
        ("top", "class", [2, 3, 5, 6, 9]),
        ("bottom", "class", [0, 1, 4, 7, 8]),
        ("top", "all", [3, 4, 5, 6, 9]),
        ("bottom", "all", [0, 1, 2, 7, 8]),
    ],
)
def test_pruning_by_hand(drop: Drop, scope: Scope, left: list[int]) -> None:
    """Half of ten rows in classes of 4, 3 and 3.

        row       0    1    2    3    4    5    6    7    8    9
        class     0    0    0    0    1    1    1    2    2    2
        sureness  0.95 0.85 0.7  0.6  0.65 0.5  0.4  0.8  0.75 0.55

    top, class     2, 1 and 1 are dropped: 0, 1; 4; 7. One more of class 1 (0.5) or 2 (0.75): row 8
    bottom, class  3, 2; 6; 9. One more of class 1 (0.5) or 2 (0.75), the less sure: row 5
    top, all       0.95, 0.85, 0.8, 0.75, 0.7: rows 0, 1, 7, 8, 2
    bottom, all    0.4, 0.5, 0.55, 0.6, 0.65: rows 6, 5, 9, 3, 4
    """
    sure = torch.tensor([0.95, 0.85, 0.7, 0.6, 0.65, 0.5, 0.4, 0.8, 0.75, 0.55])
    classes = torch.tensor([0, 0, 0, 0, 1, 1, 1, 2, 2, 2])
    assert prune_by_sureness(sure, classes, 5, HERE, drop, scope).tolist() == left


def test_random_pruning_drops_as_many_of_each_class_and_does_not_look() -> None:
    """Of 40, 30 and 30 rows a tenth is left: 4, 3 and 3, whichever way sureness points."""
    sure, classes = torch.arange(100.0), torch.tensor([0] * 40 + [1] * 30 + [2] * 30)
    left = prune_by_sureness(sure, classes, 10, HERE, "random")
    assert classes[left].bincount().tolist() == [4, 3, 3]
    assert torch.equal(left, prune_by_sureness(-sure, classes, 10, HERE, "random"))
    assert not torch.equal(left, prune_by_sureness(sure, classes, 10, Streams(1), "random"))
    assert len(prune_by_sureness(sure, classes, 10, HERE, "random", "all")) == 10


def test_equal_rows_go_by_index() -> None:
    same, one = torch.ones(6), torch.zeros(6, dtype=torch.int64)
    assert balance_classes(same, one, 2, 1.0, "hard").tolist() == [0, 1]
    assert balance_classes(same, one, 2, 1.0, "easy").tolist() == [0, 1]
    assert balance_classes(same, one, 3, 1.0, "mixed").tolist() == [0, 1, 2]
    for drop in ("top", "bottom"):
        assert prune_by_sureness(same, one, 2, HERE, drop).tolist() == [4, 5]


def test_both_ways_to_be_sure_by_hand() -> None:
    """Probabilities (1/2, 1/4, 1/4) and (1/2, 1/2, 0): equally confident, but the entropy is 3/2 ln 2 and ln 2."""
    logits = torch.tensor([[0.5, 0.25, 0.25], [0.5, 0.5, 0.0]]).log()
    assert sureness(logits).tolist() == pytest.approx([0.0, 0.0], abs=1e-6)
    assert sureness(logits, "entropy").tolist() == pytest.approx([-1.5 * math.log(2), -math.log(2)], rel=1e-6)


@pytest.mark.parametrize("by", get_args(Sureness))
def test_very_sure_rows_are_told_apart(by: Sureness) -> None:
    """Their probabilities are all 1 in single precision, and from 40 on in double precision, too."""
    gaps = torch.tensor([20.0, 30.0, 45.0, 60.0, 300.0])
    sure = sureness(torch.stack([gaps, torch.zeros(5)], dim=1), by)
    assert (sure.diff() > 0).all()


def test_order_of_confidence_is_that_of_the_largest_probability() -> None:
    _, logits = pool(500)
    largest = F.softmax(logits.double(), dim=1).amax(dim=1)
    assert torch.equal(sureness(logits).argsort(), largest.argsort())
    entropy = torch.distributions.Categorical(logits=logits.double()).entropy()
    torch.testing.assert_close(sureness(logits, "entropy"), -entropy)
    # Logits and log-probabilities say the same.
    torch.testing.assert_close(sureness(logits), sureness(F.log_softmax(logits.double(), dim=1)))


def test_log_odds_beyond_the_smallest_exponential() -> None:
    assert sureness(torch.tensor([[0.0, -2000.0], [0.0, -900.0], [0.0, -700.0]])).tolist() == [2000, 900, 700]
    assert sureness(torch.tensor([[3.0]])).tolist() == [math.inf]


# Against the listings -----------------------------------------------------------------------------------------------


def listing_two(distances: list[float], classes: list[int], size: int, factor: float, heuristic: str) -> list[int]:
    """K-means balancing, steps 2 and 4 to 7, with lists."""
    left = list(range(len(distances)))
    new: list[int] = []

    def move(some: list[int], count: int) -> None:
        for number in range(min(count, len(some))):
            hard = {"hard": count, "mixed": count - count // 2, "easy-as-released": count // 2, "easy": 0}[heuristic]
            hardest = number < hard
            pick = min(some, key=lambda n: (-distances[n] if hardest else distances[n], n))
            some.remove(pick)
            left.remove(pick)
            new.append(pick)

    found = sorted(set(classes))
    bound = math.floor(size / len(found) * factor)
    for one in found:
        move([n for n in left if classes[n] == one], bound)
    move(list(left), size - len(new))
    return sorted(new)


def listing_three(sure: list[float], classes: list[int], share: float, heuristic: str) -> list[int]:
    """Entropy selection, step 2, in each class: the floor of the share is removed."""
    left = list(range(len(sure)))
    for one in sorted(set(classes)):
        rows = [n for n in left if classes[n] == one]
        for _ in range(math.floor(share * len(rows))):
            pick = min(rows, key=lambda n: (-sure[n] if heuristic == "top" else sure[n], n))
            rows.remove(pick)
            left.remove(pick)
    return left


@pytest.mark.parametrize("heuristic", get_args(Heuristic))
@pytest.mark.parametrize("factor", [0.0, 0.5, 1.0])
def test_balancing_is_that_of_the_listing(heuristic: Heuristic, factor: float) -> None:
    for size in (1, 7, 60, 150):
        embeddings, logits = pool(150, classes=7, name=f"listing {size}")
        logits[:, 3] += 3.0  # a class that is predicted too often, and others that cannot give their share
        distances, classes = embeddings[:, 0].abs(), logits.argmax(dim=1)
        distances[::5] = distances[0]
        plain = listing_two(distances.tolist(), classes.tolist(), size, factor, heuristic)
        assert balance_classes(distances, classes, size, factor, heuristic).tolist() == plain


@pytest.mark.parametrize("drop", ["top", "bottom"])
def test_pruning_is_that_of_the_listing_where_shares_are_whole(drop: Drop) -> None:
    """Three quarters of 40, 80 and 120 rows: 60 are left, and no fraction."""
    sure = pool(240)[0][:, 0]
    classes = torch.tensor([0] * 40 + [1] * 80 + [2] * 120)[Streams(1).draw("mix").permutation(240)]
    plain = listing_three(sure.tolist(), classes.tolist(), 0.75, drop)
    assert prune_by_sureness(sure, classes, 60, HERE, drop).tolist() == plain


@pytest.mark.parametrize("drop", ["top", "bottom"])
def test_pruning_takes_at_most_one_more_of_a_class_than_the_listing(drop: Drop) -> None:
    sure = pool(200)[0][:, 0]
    classes = pool(200, classes=9)[1].argmax(dim=1)
    plain = set(listing_three(sure.tolist(), classes.tolist(), 0.75, drop))
    ours = set(prune_by_sureness(sure, classes, 50, HERE, drop).tolist())
    assert len(plain) > 50
    assert ours < plain
    assert max(classes[sorted(plain - ours)].bincount().tolist()) == 1


@pytest.mark.parametrize("heuristic", get_args(Heuristic))
@pytest.mark.parametrize("by", get_args(Sureness))
def test_everything_together(heuristic: Heuristic, by: Sureness) -> None:
    """The stages in a row: 60 of 200 candidates of 500. e = 0.7 makes that whole; classes need not be."""
    embeddings, logits = pool(500)
    ours = Selection(kmeans=30, heuristic=heuristic, by=by, prune=0.7).select(embeddings, logits, 60, HERE).tolist()
    distances = cluster(embeddings, 30, HERE.draw("clusters")).distances
    classes = logits.argmax(dim=1).tolist()
    first = listing_two(distances.tolist(), classes, 200, 1.0, heuristic)
    probabilities = F.softmax(logits.double(), dim=1)
    largest = probabilities.amax(dim=1)
    values = largest if by == "confidence" else (probabilities * probabilities.log()).sum(dim=1)
    second = listing_three([float(values[n]) for n in first], [classes[n] for n in first], 0.7, "top")
    listed = [first[n] for n in second]
    assert set(ours) <= set(listed)
    assert len(ours) == 60
    assert len(listed) - len(ours) < 4
