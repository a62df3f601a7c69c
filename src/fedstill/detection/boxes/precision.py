"""Average precision and recall of one class, from how many detections are right at each score.

All-point average precision, as in PASCAL VOC from 2010 on: the area under precision as a function of recall, where
precision at a recall is the best at this recall or any higher one.

Detections of equal score are one step, which makes the result free of their order. It is the least that any order of
them would give (all wrong ones first), because within a step of right ones precision only rises. Coarser scores merge
steps, so by the same argument they never raise average precision; `best=True` gives the most that any order within
the steps would give (all right ones first). Between the two lies the average precision of any finer scores.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Steps:
    """Detections of one class from the highest score down: at each score how many, and how many of them are right."""

    scores: Tensor
    right: Tensor
    all: Tensor
    truths: int  # objects of the class there are, found or not

    @staticmethod
    def of(scores: Tensor, right: Tensor, truths: int) -> Steps:
        """From single detections, in any order; those of several scenes or sites are simply put together."""
        values, where = scores.unique(return_inverse=True)
        counted = torch.bincount(where, minlength=len(values))
        correct = torch.bincount(where[right], minlength=len(values))
        return Steps(values.flip(0), correct.flip(0), counted.flip(0), truths)


def recall_precision(steps: Steps, *, best: bool = False) -> tuple[Tensor, Tensor]:
    """Recall and precision after each step, before the envelope is taken."""
    right = steps.right.cumsum(0).double()
    wrong = (steps.all - steps.right).cumsum(0).double()
    if best:
        wrong = wrong - (steps.all - steps.right)
    return right / steps.truths, right / (right + wrong).clamp(min=1)


def average_precision(steps: Steps, *, best: bool = False) -> float:
    """NaN for a class of which there is no object, 0 where there is no detection.

    Right, wrong, right; two objects: half of the recall at precision 1, half at 2/3.

    >>> steps = Steps.of(torch.tensor([0.9, 0.8, 0.7]), torch.tensor([True, False, True]), truths=2)
    >>> average_precision(steps)
    0.8333333333333333
    """
    if not steps.truths:
        return float("nan")
    if not len(steps.all):
        return 0.0
    _, precision = recall_precision(steps, best=best)
    envelope = precision.flip(0).cummax(0).values.flip(0)
    # Counts times precision, divided once: perfect detections give exactly 1.
    return float((steps.right * envelope).sum() / steps.truths)


def final_recall(steps: Steps) -> float:
    """The share of objects that any detection found, however unsure; NaN where there are none.

    Its mean over classes is what papers on this task call average recall.
    """
    return int(steps.right.sum()) / steps.truths if steps.truths else float("nan")
