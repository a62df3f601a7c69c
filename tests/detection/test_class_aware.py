"""Class-aware weights by hand, and against gradients written out."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from fedstill.core.task import Output
from fedstill.detection.class_aware import COUNTS, EVEN, SUMS, ClassAware, class_weights, object_weights
from fedstill.tasks.classification import Classification
from fedstill.tasks.segmentation import Segmentation

from .small_scenes import STEADY, bare, rooms

TASK = Classification(("a", "b", "c"), (1, 8, 8), ("mlp",))


def found(sums: Sequence[float], counts: Sequence[int]) -> dict[str, Tensor]:
    return {SUMS: torch.tensor(sums, dtype=torch.float64), COUNTS: torch.tensor(counts)}


def ones(classes: int = 3) -> Tensor:
    return torch.ones(classes, dtype=torch.float64)


def said(probabilities: Sequence[Sequence[float]]) -> Tensor:
    return torch.tensor(probabilities).log().requires_grad_()


# R


def test_weights_of_objects_by_hand() -> None:
    """Of three objects with p = 0.5, 0.75, 0.75 the last is of a class with G = 2.

    g G is 0.5, 0.25, 0.5 and adds up to 1.25: R is 3/1.25 of it, 1.2, 0.6, 1.2. Without g: 1, 1, 2 of 4, times 3.
    Without G: 0.5, 0.25, 0.25 of 1, times 3.
    """
    probability, labels = torch.tensor([0.5, 0.75, 0.75]), torch.tensor([0, 0, 2])
    across = torch.tensor([1.0, 5.0, 2.0], dtype=torch.float64)
    for local, pull, expected in (
        (True, across, [1.2, 0.6, 1.2]),
        (False, across, [0.75, 0.75, 1.5]),
        (True, None, [1.5, 0.75, 0.75]),
        (False, None, [1.0, 1.0, 1.0]),
    ):
        weights = ClassAware(TASK, local, pull).weigh(probability, labels)
        assert weights.dtype == torch.float32
        assert weights.tolist() == pytest.approx(expected)


@pytest.mark.parametrize("number", [1, 2, 7, 300])
def test_weights_of_a_batch_add_up_to_its_objects(number: int) -> None:
    generator = torch.Generator().manual_seed(number)
    shortfall, pull = (torch.rand(number, generator=generator) for _ in range(2))
    weights = object_weights(shortfall, pull)
    assert float(weights.sum()) == pytest.approx(number, rel=1e-6)
    # Only ratios of G matter.
    torch.testing.assert_close(object_weights(shortfall, 7 * pull), weights)


def test_weights_where_there_is_nothing_to_weigh() -> None:
    """No objects have no weights; where nothing is missing from any, classes still weigh: 2 x 1/4 and 2 x 3/4.

    Where everybody was sure of these classes, G is ln(1 + 0) = 0, and objects of them are all alike.
    """
    assert object_weights(torch.zeros(0), torch.zeros(0)).tolist() == []
    assert object_weights(torch.zeros(2), torch.tensor([1.0, 3.0])).tolist() == [0.5, 1.5]
    assert object_weights(torch.tensor([0.0, 0.5]), torch.ones(2)).tolist() == [0.0, 2.0]
    assert object_weights(torch.tensor([0.2, 0.5]), torch.zeros(2)).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("number", [1, 3, 7, 11, 49, 1000])
def test_even_weights_are_one_to_the_bit(number: int) -> None:
    assert torch.equal(object_weights(torch.ones(number), torch.ones(number)), torch.ones(number))


# G


def test_weights_of_classes_by_hand() -> None:
    """Client 0: means 0.5 and 0.2 of classes a and b; client 1: 0.3 of a. Sums 0.8 and 0.2, of 1.

    Of three classes: ln(1 + 3 x 0.8), ln(1 + 3 x 0.2); nobody has c, which keeps what it had.
    """
    before = torch.tensor([1.0, 1.0, 0.4], dtype=torch.float64)
    after = class_weights(before, [found([2.0, 0.2, 0], [4, 1, 0]), found([0.9, 0, 0], [3, 0, 0])])
    assert after.tolist() == pytest.approx([math.log(3.4), math.log(1.6), 0.4])
    assert before.tolist() == [1.0, 1.0, 0.4]


def test_equally_hard_classes_weigh_alike() -> None:
    """Each has 1/3 of the sum: ln 2, whatever the number of its objects."""
    after = class_weights(ones(), [found([0.5, 5.0, 50.0], [1, 10, 100])])
    assert after.tolist() == pytest.approx([math.log(2)] * 3)


def test_a_class_that_is_absent_at_first_weighs_about_as_much_as_the_others() -> None:
    """Nine of ten classes, equally hard: ln(1 + 10/9) = 0.7472. The absent one keeps ln 2, 0.93 of that; a start at 1
    would be 1.34 of it. With all ten present, the start is what they get."""
    reply = {SUMS: torch.tensor([0.5] * 9 + [0.0]), COUNTS: torch.tensor([1] * 9 + [0])}
    after = class_weights(torch.full((10,), EVEN, dtype=torch.float64), [reply])
    assert after[:9].tolist() == pytest.approx([math.log(19 / 9)] * 9)
    assert (after[9] / after[0]).item() == pytest.approx(0.92765, abs=1e-4)
    assert (class_weights(torch.ones(10).double(), [reply])[9] / after[0]).item() == pytest.approx(1.3383, abs=1e-4)
    every = {SUMS: torch.full((10,), 0.5), COUNTS: torch.ones(10)}
    assert class_weights(torch.ones(10).double(), [every]).tolist() == pytest.approx([EVEN] * 10)


def test_where_nobody_has_anything_classes_keep_their_weights() -> None:
    before = torch.tensor([0.3, 1.0, 2.0], dtype=torch.float64)
    for replies in ([], [found([0, 0, 0], [0, 0, 0])], [found([0, 0, 0], [5, 5, 0])]):
        assert class_weights(before, replies).tolist() == before.tolist()


@pytest.mark.parametrize(
    "lie",
    [found([1e30, 0.5, 0.5], [1, 1, 1]), found([-1e30, 0.5, 0.5], [1, 1, 1]), found([5.0, 0.5, 0.5], [-3, 1, 1])],
    ids=["too-much", "below-zero", "negative-count"],
)
def test_a_liar_has_one_voice(lie: dict[str, Tensor]) -> None:
    """A mean is between 0 and 1: of class a the liar's counts as 1 or 0, and a count below zero as none."""
    honest = [found([0.5, 0.5, 0.5], [1, 1, 1]) for _ in range(4)]
    after = class_weights(ones(), [*honest, lie])
    low, high = (math.log(1 + 3 * a / (a + 5)) for a in (2.0, 3.0))
    assert low - 1e-9 <= after[0].item() <= high + 1e-9
    assert after.isfinite().all()


# The loss


def test_the_loss_and_what_is_counted_by_hand() -> None:
    """Two samples, p = 0.5 and 0.8, of classes a and b with G = 1 and 2: g G = 0.5 and 0.4, R = 2/0.9 of it.

    The loss is the mean of R times -ln p. Counted are g, one of each class, and in the second step once more.
    """
    aware = ClassAware(TASK, True, torch.tensor([1.0, 2.0, 1.0], dtype=torch.float64))
    logits = said([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1]])
    batch = {"labels": torch.tensor([0, 1])}
    loss = aware(Output(logits, logits), batch, {})["cross-entropy"]
    weights = 2 * np.array([0.5, 0.4]) / 0.9
    assert loss.item() == pytest.approx(float((weights * -np.log([0.5, 0.8])).mean()), rel=1e-6)
    aware(Output(logits, logits), batch, {})
    statistics = aware.statistics()
    assert statistics[COUNTS].tolist() == [2, 2, 0]
    assert statistics[SUMS].tolist() == pytest.approx([1.0, 0.4, 0.0], rel=1e-6)


def test_nothing_is_learnt_through_the_weights() -> None:
    """The gradient at log-probabilities is that of a weighted mean with constant weights: -R / B at the label."""
    logits = said([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1]])
    loss = ClassAware(TASK, True, None)(Output(logits, logits), {"labels": torch.tensor([0, 1])}, {})["cross-entropy"]
    (gradient,) = torch.autograd.grad(loss, logits)
    expected = torch.zeros(2, 3)
    expected[0, 0], expected[1, 1] = -(2 * 0.5 / 0.7) / 2, -(2 * 0.2 / 0.7) / 2
    torch.testing.assert_close(gradient, expected)


def test_every_point_of_a_cloud_is_an_object() -> None:
    """Two clouds of two points: g = 0.5, 0.2, 0.5, 0.5."""
    task = Segmentation(("a", "b"), (2, 3), ("pointnet2-segmentation-lite",))
    logits = said([[0.5, 0.5], [0.2, 0.8], [0.5, 0.5], [0.5, 0.5]]).reshape(2, 2, 2)
    aware = ClassAware(task, True, None)
    loss = aware(Output(logits, logits), {"inputs": torch.zeros(2, 2, 3), "labels": torch.tensor([[0, 1], [1, 1]])}, {})
    weights = 4 * np.array([0.5, 0.2, 0.5, 0.5]) / 1.7
    assert loss["cross-entropy"].item() == pytest.approx(float((weights * -np.log([0.5, 0.8, 0.5, 0.5])).mean()))
    assert aware.statistics()[COUNTS].tolist() == [1, 3]


@pytest.mark.parametrize("across", [None, ones(10)], ids=["without", "ones"])
def test_even_classes_without_local_weights_are_the_tasks_own_loss_to_the_bit(across: Tensor | None) -> None:
    batch = rooms(4, 20).batch(torch.arange(4))
    output = STEADY.forward(STEADY.build("tiny"), batch)
    aware = ClassAware(STEADY, False, across)
    terms = aware(output, batch, {})
    assert terms.keys() == output.terms.keys()
    assert all(torch.equal(terms[name], term) for name, term in output.terms.items())
    local = ClassAware(STEADY, True, across)(output, batch, {})
    assert not torch.equal(local["class"], terms["class"])
    assert not torch.equal(local["giou"], terms["giou"])
    assert torch.equal(local["tokens"], terms["tokens"])


def test_objects_of_scenes_are_counted_once_though_every_layer_weighs_them() -> None:
    """What is counted is what the last layer says: its probabilities of the objects it was matched to."""
    batch = rooms(4, 20).batch(torch.arange(4))
    output = STEADY.forward(STEADY.build("tiny"), batch)
    aware = ClassAware(STEADY, True, None)
    aware(output, batch, {})
    labels = batch["labels"]
    expected = torch.bincount(labels[labels >= 0], minlength=10)
    assert int(expected.sum()) > 5
    assert torch.equal(aware.statistics()[COUNTS], expected)
    first, last = output.losses.layers
    for layer, same in ((last, True), (first, False)):
        sums = torch.zeros(10, dtype=torch.float64)
        for label, probability in zip(layer.labels.tolist(), layer.probability.tolist(), strict=True):
            sums[label] += 1 - probability
        assert torch.allclose(aware.statistics()[SUMS], sums, atol=1e-6) == same


def test_scenes_with_nothing_to_find_count_for_nothing() -> None:
    batch = bare(rooms(3, 20)).batch(torch.arange(3))
    output = STEADY.forward(STEADY.build("tiny"), batch)
    aware = ClassAware(STEADY, True, ones(10))
    terms = aware(output, batch, {})
    assert all(torch.equal(terms[name], term) for name, term in output.terms.items())
    assert aware.statistics()[COUNTS].tolist() == [0] * 10
    assert aware.statistics()[SUMS].tolist() == [0.0] * 10
