"""Average precision by hand, against slow definitions, free of order; which detections are right, in a slow loop."""

from __future__ import annotations

from math import isnan
from typing import Any

import pytest
import torch
from torch import Tensor

from fedstill.core.errors import InputError
from fedstill.detection.boxes import Steps, average_precision, final_recall, judge, recall_precision


def slow_average_precision(scores: list[float], right: list[bool], truths: int) -> float:
    """The mean over objects of the best precision among all cuts that find at least so many: no curve, no envelope."""
    cuts = []
    for cut in set(scores):
        said = [good for score, good in zip(scores, right, strict=True) if score >= cut]
        cuts.append((sum(said), sum(said) / len(said)))
    best = [max((p for found, p in cuts if found >= wanted), default=0.0) for wanted in range(1, truths + 1)]
    return sum(best) / truths


def slow_judge(boxes: Any, scores: Any, classes: Any, truth: Any, labels: Any, threshold: float) -> list[bool]:
    """Axis-aligned boxes in plain numbers, one detection after the other."""

    def overlap(a: list[float], b: list[float]) -> float:
        shared = 1.0
        for axis in range(3):
            low = max(a[axis] - a[axis + 3] / 2, b[axis] - b[axis + 3] / 2)
            high = min(a[axis] + a[axis + 3] / 2, b[axis] + b[axis + 3] / 2)
            shared *= max(high - low, 0.0)
        return shared / (a[3] * a[4] * a[5] + b[3] * b[4] * b[5] - shared)

    right, taken = [False] * len(boxes), set()
    for row in sorted(range(len(boxes)), key=lambda each: -float(scores[each])):
        seen = [
            (overlap(boxes[row].tolist(), truth[each].tolist()), each)
            for each in range(len(truth))
            if labels[each] == classes[row]
        ]
        if seen and max(seen)[0] > threshold and max(seen)[1] not in taken:
            taken.add(max(seen)[1])
            right[row] = True
    return right


def drawn(count: int, seed: int, ties: int | None = None) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(count, generator=generator, dtype=torch.float64)
    right = torch.rand(count, generator=generator) < 0.2 + 0.6 * scores
    return (scores if ties is None else (scores * ties).round() / ties), right


@pytest.mark.parametrize("ties", [None, 20, 3], ids=["apart", "some ties", "many ties"])
def test_against_a_slow_definition(ties: int | None) -> None:
    for seed in range(12):
        scores, right = drawn(80, seed, ties)
        truths = int(right.sum()) + seed
        value = average_precision(Steps.of(scores, right, truths))
        assert value == pytest.approx(slow_average_precision(scores.tolist(), right.tolist(), truths), abs=1e-12)
        assert 0.2 < value < 1


def test_by_hand() -> None:
    """Right, wrong, right, right, wrong with 5 objects.

    Precision is 1, 1/2, 2/3, 3/4, 3/5; seen from the right, never falling, 1, 3/4, 3/4, 3/4, 3/5. Of the 5 objects one
    is found at precision 1 and two at 3/4: (1 + 2 * 3/4) / 5.
    """
    scores = torch.tensor([0.9, 0.8, 0.7, 0.6, 0.5])
    steps = Steps.of(scores, torch.tensor([True, False, True, True, False]), 5)
    recall, precision = recall_precision(steps)
    assert recall.tolist() == pytest.approx([0.2, 0.2, 0.4, 0.6, 0.6])
    assert precision.tolist() == pytest.approx([1, 1 / 2, 2 / 3, 3 / 4, 3 / 5])
    assert average_precision(steps) == pytest.approx(2.5 / 5)
    assert final_recall(steps) == 0.6


def test_equal_scores_are_one_step() -> None:
    """One right and one wrong at the same score: precision 1/2, neither 1 nor what a lucky order would give."""
    for right in ([True, False], [False, True]):
        steps = Steps.of(torch.tensor([0.7, 0.7]), torch.tensor(right), 1)
        assert average_precision(steps) == 0.5
        assert average_precision(steps, best=True) == 1.0


@pytest.mark.parametrize("ties", [None, 10], ids=["apart", "ties"])
def test_the_order_of_detections_changes_no_bit(ties: int | None) -> None:
    scores, right = drawn(300, 7, ties)
    value = average_precision(Steps.of(scores, right, 150))
    for seed in range(5):
        order = torch.randperm(300, generator=torch.Generator().manual_seed(seed))
        assert average_precision(Steps.of(scores[order], right[order], 150)) == value


def test_perfect_is_exactly_one() -> None:
    for truths in (1, 3, 7, 49, 1000):
        scores = torch.linspace(0.1, 0.9, truths)
        every = torch.ones(truths, dtype=torch.bool)
        assert average_precision(Steps.of(scores, every, truths)) == 1.0
        assert final_recall(Steps.of(scores, every, truths)) == 1.0


def test_nothing_said_and_nothing_there() -> None:
    none = torch.zeros(0), torch.zeros(0, dtype=torch.bool)
    assert average_precision(Steps.of(*none, 4)) == 0.0
    assert final_recall(Steps.of(*none, 4)) == 0.0
    wrong = Steps.of(torch.tensor([0.5]), torch.tensor([False]), 0)
    assert isnan(average_precision(wrong))
    assert isnan(final_recall(wrong))
    assert average_precision(Steps.of(torch.tensor([0.5]), torch.tensor([False]), 2)) == 0.0


def test_judged_as_in_a_slow_loop(draw: Any) -> None:
    total = 0
    for seed in range(6):
        truth = draw(8, 70 + seed, turned=False)
        boxes = truth.repeat(4, 1) + draw(32, 80 + seed, turned=False) * 0.15
        boxes[:, 6] = 0
        scores = torch.rand(32, generator=torch.Generator().manual_seed(seed))
        classes, labels = torch.arange(32) % 8 % 3, torch.arange(8) % 3
        classes[::5] = 0
        found = judge(boxes, scores, classes, truth, labels)
        for row, threshold in enumerate((0.25, 0.5)):
            assert found[row].tolist() == slow_judge(boxes, scores, classes, truth, labels, threshold)
        assert (found[0].sum() >= found[1].sum()).item()
        total += int(found[1].sum())
    assert total > 10


def test_a_detection_only_sees_its_best_object() -> None:
    """The second detection overlaps both objects, the first one most; that is taken, and it gets no second chance."""
    truth = torch.tensor([[0.0, 0, 0, 2, 2, 2, 0], [1.0, 0, 0, 2, 2, 2, 0]])
    boxes = torch.tensor([[0.0, 0, 0, 2, 2, 2, 0], [0.4, 0, 0, 2, 2, 2, 0]])
    zeros = torch.zeros(2, dtype=torch.int64)
    assert judge(boxes, torch.tensor([0.9, 0.8]), zeros, truth, zeros).tolist() == [[True, False]] * 2
    assert judge(boxes, torch.tensor([0.8, 0.9]), zeros, truth, zeros).tolist() == [[False, True]] * 2
    assert not judge(boxes, torch.tensor([0.9, 0.8]), zeros, truth, zeros + 1).any()


def test_an_iou_of_just_the_threshold_is_not_enough() -> None:
    """A box half as high shares exactly half of the union."""
    truth, boxes = torch.tensor([[0.0, 0, 0, 2, 2, 2, 0]]), torch.tensor([[0.0, 0, 0, 2, 2, 1, 0]])
    zero = torch.zeros(1, dtype=torch.int64)
    assert judge(boxes, torch.ones(1), zero, truth, zero, (0.49, 0.5)).tolist() == [[True], [False]]


def test_scenes_without_objects_or_detections() -> None:
    none, some = torch.zeros(0, 7), torch.ones(3, 7)
    empty = torch.zeros(0, dtype=torch.int64)
    zeros = torch.zeros(3, dtype=torch.int64)
    assert judge(some, torch.rand(3), zeros, none, empty).tolist() == [[False] * 3] * 2
    assert judge(none, torch.zeros(0), empty, some, zeros).shape == (2, 0)
    with pytest.raises(InputError, match=r"each of 3 true boxes needs one class, but these are of shape \(0,\)"):
        judge(some, torch.rand(3), zeros, some, empty)
    with pytest.raises(InputError, match="ground truth: box 1 has a negative size"):
        judge(some, torch.rand(3), zeros, some * torch.tensor([[1.0], [-1.0], [1.0]]), zeros)
