"""Suppression against a slow loop, ties, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fedstill.core.errors import InputError
from fedstill.detection.boxes import iou, suppress, usable


def slowly(boxes: Tensor, scores: Tensor, classes: Tensor, threshold: float) -> list[int]:
    """Take the surest of those left, drop what it covers, and again."""
    left, kept = list(range(len(boxes))), []
    while left:
        best = max(left, key=lambda row: (float(scores[row]), -row))
        kept.append(best)
        left = [
            row
            for row in left
            if row != best and not (classes[row] == classes[best] and iou(boxes[best], boxes[row]) > threshold)
        ]
    return kept


@pytest.mark.parametrize("turned", [False, True], ids=["aligned", "turned"])
@pytest.mark.parametrize("threshold", [0.0, 0.1, 0.25, 1.0])
def test_against_a_slow_loop(draw: Any, turned: bool, threshold: float) -> None:
    boxes = draw(60, 50, torch.float32, turned=turned, spread=0.6)
    classes = torch.arange(60) % 3
    scores = torch.rand(60, generator=torch.Generator().manual_seed(1)).mul(20).round() / 20  # with ties
    kept = suppress(boxes, scores, classes, threshold).tolist()
    assert kept == slowly(boxes, scores, classes, threshold)
    assert len(kept) == 60 if threshold == 1 else 3 < len(kept) < 60


def test_what_is_suppressed_suppresses_nothing() -> None:
    """Of three in a row each overlaps its neighbours by 1/3: the middle one goes, and so the last one stays."""
    boxes = torch.tensor([[x, 0, 0, 2, 2, 2, 0] for x in (0.0, 1.0, 2.0)])
    same = torch.zeros(3, dtype=torch.int64)
    assert suppress(boxes, torch.tensor([0.9, 0.8, 0.7]), same).tolist() == [0, 2]
    assert suppress(boxes, torch.tensor([0.8, 0.9, 0.7]), same).tolist() == [1]
    assert suppress(boxes, torch.tensor([0.8, 0.9, 0.7]), same, threshold=0.34).tolist() == [1, 0, 2]


def test_of_equal_scores_the_first_stays() -> None:
    boxes = torch.tensor([[0.0, 0, 0, 1, 1, 1, 0]]).expand(5, 7)
    assert suppress(boxes, torch.full((5,), 0.5), torch.tensor([1, 0, 1, 0, 1])).tolist() == [0, 1]


def test_nothing_to_suppress() -> None:
    none = torch.zeros(0)
    assert suppress(torch.zeros(0, 7), none, none.long()).tolist() == []


@pytest.mark.parametrize(
    ("scores", "classes", "sentence"),
    [
        (
            torch.zeros(3),
            torch.zeros(2),
            r"each of 2 detections needs one score and one class, but .* \(3,\) and \(2,\)",
        ),
        (torch.tensor([0.5, torch.nan]), torch.zeros(2), "detection 1 has a score that is not finite"),
    ],
    ids=["too many", "nan"],
)
def test_refused(scores: Tensor, classes: Tensor, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        suppress(torch.ones(2, 7), scores, classes)


def test_what_a_diverged_model_says_can_be_left_out() -> None:
    boxes = torch.ones(4, 7)
    boxes[1, 2], boxes[2, 4] = torch.inf, -0.1
    assert usable(boxes, torch.tensor([0.1, 0.2, 0.3, torch.nan])).tolist() == [True, False, False, False]
