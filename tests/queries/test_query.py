"""Who asks for what, and what became of it, worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedstill.core.errors import InputError
from fedstill.core.streams import Streams
from fedstill.queries.query import Answered, Queries, averaged, recalls

CLASSES = ("a", "b", "c", "d", "e")
COUNTS = torch.tensor([100, 49, 50, 0, 3])  # with the usual limit of 50, classes 1, 3 and 4 are scarce


def test_a_single_query_is_for_one_class_among_the_scarce() -> None:
    """600 clients with the same three scarce classes: each is drawn about 200 times, with a deviation of 12."""
    asked = [Queries().of(client, COUNTS, Streams(1)) for client in range(600)]
    assert {len(query) for query in asked} == {1}
    drawn = torch.bincount(torch.tensor(asked).flatten(), minlength=5).tolist()
    assert drawn[0] == drawn[2] == 0
    assert all(130 < drawn[number] < 270 for number in (1, 3, 4))


def test_a_multiple_query_is_for_two_or_more_of_them() -> None:
    """Two or three of three with equal chances; a client with one scarce class asks for that one."""
    asked = [Queries(classes="multi").of(client, COUNTS, Streams(1)) for client in range(400)]
    sizes = [len(query) for query in asked]
    assert set(sizes) == {2, 3}
    assert 140 < sizes.count(2) < 260
    assert all(set(query) <= {1, 3, 4} and list(query) == sorted(set(query)) for query in asked)
    assert Queries(classes="multi", under=1).of(0, COUNTS, Streams(1)) == (3,)


def test_what_a_client_asks_for_depends_on_nobody_else() -> None:
    first = Queries().of(7, COUNTS, Streams(1))
    Queries().of(6, COUNTS, Streams(1))
    assert Queries().of(7, COUNTS, Streams(1)) == first
    assert len({Queries().of(7, COUNTS, Streams(seed)) for seed in range(20)}) > 1


def test_who_has_enough_of_everything_asks_for_nothing() -> None:
    for classes in ("single", "multi"):
        assert Queries(classes=classes).of(0, torch.full((5,), 50), Streams(1)) == ()


def test_queries_by_hand_replace_the_draw() -> None:
    queries = Queries(by_hand={3: (4, 0, 4)})
    assert queries.of(3, COUNTS, Streams(1)) == (0, 4)
    assert queries.of(2, COUNTS, Streams(1)) == ()
    assert Queries.model_validate({"by_hand": {"3": [7, 8]}}).by_hand == {3: (7, 8)}  # as a recipe has it


@pytest.mark.parametrize(
    ("by_hand", "sentence"),
    [
        ({4: (0,)}, "a query is for client 4, and clients are 0 to 3"),
        ({-1: (0,)}, "client -1"),
        ({0: (5,)}, "client 0 asks for class 5, and classes are 0 to 4: a, b, c, d, e"),
        ({0: (-1,)}, "asks for class -1"),
    ],
    ids=["client", "negative client", "class", "negative class"],
)
def test_a_query_for_what_does_not_exist_is_refused(by_hand: dict[int, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        Queries(by_hand=by_hand).check(4, CLASSES)


def test_queries_for_what_exists_are_not() -> None:
    Queries(by_hand={0: (0, 4), 3: ()}).check(4, CLASSES)
    Queries().check(1, CLASSES)


def test_a_class_that_is_local_and_asked_for_weighs_one() -> None:
    """Counts 30, 10 and 2, the last asked for: weights 30/42, 10/42 and 1, in all 82/42.

    After (0.7, 0.6, 0.5): (21 + 6 + 21) / 42 over 82/42 is 48/82. It is one of three local classes too: of the changes
    -0.1, 0 and +0.4 only the first is forgetting.
    """
    before, after = torch.tensor([0.8, 0.6, 0.1]), torch.tensor([0.7, 0.6, 0.5])
    metrics = Answered(before, after, torch.tensor([30, 10, 2]), (2,)).metrics()
    expected = {
        "accuracy": 48 / 82,
        "before": (24 + 6 + 4.2) / 82,
        "gain": 0.4,
        "forgetting": -0.1 / 3,
        "uniform": 0.6,
    }
    assert metrics == pytest.approx(expected, abs=1e-7)


def test_classes_that_are_neither_local_nor_asked_for_do_not_count() -> None:
    """Two local classes, one asked for, one of no interest, whatever is said of that one."""
    counts = torch.tensor([10, 10, 0, 0])
    for other in (0.0, 1.0):
        after = torch.tensor([1.0, 0.0, 0.5, other])
        metrics = Answered(torch.zeros(4), after, counts, (2,)).metrics()
        assert metrics["accuracy"] == pytest.approx((0.5 + 0.5) / 2)
        assert metrics["uniform"] == pytest.approx(0.5)
        assert metrics["forgetting"] == 0.0


def test_a_client_without_samples_forgets_nothing() -> None:
    """All it has is what it asks for: half of that, up from a tenth."""
    fate = Answered(torch.tensor([0.9, 0.1]), torch.tensor([0.2, 0.5]), torch.tensor([0, 0]), (1,))
    expected = {"accuracy": 0.5, "before": 0.1, "gain": 0.4, "forgetting": 0.0, "uniform": 0.5}
    assert fate.metrics() == pytest.approx(expected)


def test_means_are_over_clients_that_asked() -> None:
    """Accuracies 1 and 0: mean 1/2, deviation sqrt(1/2); the third client asked for nothing."""
    counts, zeros, ones = torch.tensor([1, 0]), torch.zeros(2), torch.ones(2)
    fates = [Answered(zeros, after, counts, query) for after, query in ((ones, (1,)), (zeros, (1,)), (ones, ()))]
    means = averaged(fates)
    assert means["accuracy"] == 0.5
    assert means["accuracy_std"] == pytest.approx(0.5**0.5)
    assert means["gain"] == 0.5
    assert means["clients"] == 2
    assert averaged(fates[2:]) == {}
    assert averaged(fates[:1])["accuracy_std"] == 0.0


def test_recall_of_a_class_without_samples_is_zero() -> None:
    assert recalls(torch.tensor([[2, 2, 0], [0, 0, 0], [1, 0, 4]])).tolist() == [0.5, 0.0, 0.8]


def test_settings_are_described() -> None:
    assert all(field.description for field in Queries.model_fields.values())
