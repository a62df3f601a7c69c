"""Average precision and recall of one class, from the number of true positives at each score.

All-point average precision, as in PASCAL VOC from 2010 on: the area under precision as a function of recall, where
precision at a recall is the best at this recall or any higher one.

Detections of equal score are one step, so the result does not depend on their order. It is the lowest value of any
order (false positives first), because within a step of true positives precision only rises. Coarser scores merge steps,
so by the same argument they never raise average precision; `best=True` gives the highest value of any order within the
steps (true positives first). The average precision of any finer scores lies between the two.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Steps:
    """Detections of one class by descending score: at each score their number, and the number of true positives."""

    scores: Tensor
    right: Tensor
    all: Tensor
    truths: int  # number of objects of the class, found or not

    @staticmethod
    def of(scores: Tensor, right: Tensor, truths: int) -> Steps:
        """From single detections, in any order; those of several scenes or sites can be concatenated."""
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
    """The average precision; NaN for a class without objects, 0 without detections.

    Example: true, false, true positive and two objects: half of the recall at precision 1, half at 2/3.

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
    """The fraction of objects found by any detection, whatever its score; NaN without objects.

    Its mean over classes is called average recall in papers on this task.
    """
    return int(steps.right.sum()) / steps.truths if steps.truths else float("nan")
