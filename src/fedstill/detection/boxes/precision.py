"""Average precision and recall of one class, from the number of true positives at each score.

All-point average precision, as in PASCAL VOC from 2010 on: the area under precision as a function of recall, where
precision at a recall is the best at this recall or any higher one.

Detections of equal score are one step, so the result does not depend on their order. It is the lowest value of any
order (false positives first), because within a step of true positives precision only rises. Coarser scores merge steps,
so by the same argument they never raise average precision; `best=True` gives the highest value of any order within the
steps (true positives first). The average precision of any finer scores lies between the two. `spread_precision` takes
true positives to be spread evenly within each step: the estimate where scores are equal only because they were rounded.
"""

from __future__ import annotations

from collections.abc import Callable
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


StepTable = tuple[tuple[Steps, ...], ...]  # by threshold and class


def steps_by_class(scores: Tensor, right: Tensor, classes: Tensor, objects: Tensor) -> StepTable:
    """Detections of all classes (n,), `right` at each threshold (thresholds, n), and the number of true objects."""
    members = [classes == number for number in range(len(objects))]
    return tuple(
        tuple(Steps.of(scores[own], row[own], int(count)) for own, count in zip(members, objects, strict=True))
        for row in right
    )


def measured(table: StepTable, measure: Callable[[Steps], float]) -> Tensor:
    """A measure of every class at every threshold, (thresholds, classes)."""
    return torch.tensor([[measure(steps) for steps in row] for row in table], dtype=torch.float64)


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


def spread_precision(steps: Steps) -> float:
    """Average precision if the true positives of each step are spread evenly among its detections.

    Before the k-th of r true positives in a step with w false ones come (k - 1/2) w / r of these. Example: one true and
    one false positive at one score count as precision 1 / 1.5, between 1/2 and 1.

    >>> round(spread_precision(Steps.of(torch.tensor([0.7, 0.7]), torch.tensor([True, False]), truths=1)), 4)
    0.6667
    """
    if not steps.truths:
        return float("nan")
    wrong = steps.all - steps.right
    step = torch.repeat_interleave(torch.arange(len(steps.right)), steps.right)  # of each true positive
    if not len(step):
        return 0.0
    rank = torch.arange(1, len(step) + 1).double()
    within = rank - (steps.right.cumsum(0) - steps.right)[step] - 0.5
    before = (wrong.cumsum(0) - wrong)[step] + within * wrong[step] / steps.right[step]
    envelope = (rank / (rank + before)).flip(0).cummax(0).values
    return float(envelope.sum() / steps.truths)


def final_recall(steps: Steps) -> float:
    """The fraction of objects found by any detection, whatever its score; NaN without objects.

    Its mean over classes is called average recall in papers on this task.
    """
    return int(steps.right.sum()) / steps.truths if steps.truths else float("nan")
