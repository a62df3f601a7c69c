"""Histograms of detections by score, which can be summed over scenes, sites and models.

Average precision is not a mean over sites: it needs all scores in one order. Instead of its scores a site sends, for
each class, the number of detections at each score, rounded to one of 2^bits values, the number of true positives among
them at each IoU threshold, and the number of objects:

    detections (classes, scores)   right (thresholds, classes, scores)   objects (classes)

Sums of these over sites give the metrics of all pooled detections with rounded scores, bit for bit. True positives are
determined before rounding, within a scene, so rounding can only make different scores equal. That never raises average
precision, and `bounds` returns the range in which the unrounded value lies; recall is exact. `estimates` takes the true
positives among detections of equal rounded score to be spread evenly, which is close to the unrounded value.

Only the order of scores matters, so they are rounded where it costs least: log-odds, in equal steps. Confident
detectors have most of their scores near 0 and 1, where equal steps of the scores themselves would merge them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedstill.core.errors import InputError
from fedstill.detection.boxes.correctness import THRESHOLDS, judge
from fedstill.detection.boxes.precision import (
    Steps,
    StepTable,
    average_precision,
    final_recall,
    measured,
    spread_precision,
)

DETECTIONS, RIGHT, OBJECTS = "detections", "right", "objects"

_END = 17.0  # log-odds; the largest single-precision score below 1 has 16.6


@dataclass(frozen=True)
class Tally:
    """The settings of the histograms; the counts are tensors by name, whose shapes never depend on data.

    They take 4 bytes * scores * classes * (thresholds + 1): 6.3 MB for 8 classes at two thresholds with 16 bits, 1.6 MB
    with 14.
    """

    classes: int
    thresholds: tuple[float, ...] = THRESHOLDS
    bits: int = 16

    def __post_init__(self) -> None:
        if not 1 <= self.bits <= 16:
            raise InputError(f"scores can be rounded to 1 to 16 bits, not {self.bits}")

    @property
    def values(self) -> int:
        """The number of values to which scores are rounded."""
        return 1 << self.bits

    def empty(self) -> dict[str, Tensor]:
        """Zero counts."""
        return {
            DETECTIONS: torch.zeros(self.classes, self.values, dtype=torch.int32),
            RIGHT: torch.zeros(len(self.thresholds), self.classes, self.values, dtype=torch.int32),
            OBJECTS: torch.zeros(self.classes, dtype=torch.int64),
        }

    def add(
        self,
        counts: Mapping[str, Tensor],
        boxes: Tensor,
        scores: Tensor,
        classes: Tensor,
        truth: Tensor,
        labels: Tensor,
    ) -> None:
        """Add one scene's detections and objects to `counts`, in place."""
        self._check(scores, classes, labels)
        self.count(counts, scores, classes, judge(boxes, scores, classes, truth, labels, self.thresholds))
        counts[OBJECTS].add_(torch.bincount(labels.cpu(), minlength=self.classes))

    def count(self, counts: Mapping[str, Tensor], scores: Tensor, classes: Tensor, right: Tensor) -> None:
        """Add detections that were judged, of any number of scenes, in place."""
        cells = classes.cpu().long() * self.values + self.rounded(scores.cpu())
        counts[DETECTIONS].view(-1).index_add_(0, cells, torch.ones_like(cells, dtype=torch.int32))
        for found, flags in zip(counts[RIGHT], right, strict=True):
            found.view(-1).index_add_(0, cells, flags.int())

    def rounded(self, scores: Tensor) -> Tensor:
        """The index of each score among the `values`, in their order.

        >>> Tally(classes=1, bits=4).rounded(torch.tensor([0.0, 0.001, 0.4, 0.6, 0.999, 1.0])).tolist()
        [0, 4, 7, 8, 11, 15]
        """
        odds = scores.double().logit().clamp(-_END, _END)
        return ((odds + _END) / (2 * _END) * (self.values - 1)).round().long()

    def steps(self, counts: Mapping[str, Tensor], kind: int, threshold: int) -> Steps:
        """The counts of one class at one threshold (both by index), as input of the precision-recall curve."""
        counted = counts[DETECTIONS][kind]
        places = counted.nonzero().squeeze(1).flip(0)
        right = counts[RIGHT][threshold, kind][places].long()
        scores = (places.double() / (self.values - 1) * (2 * _END) - _END).sigmoid()
        return Steps(scores, right, counted[places].long(), int(counts[OBJECTS][kind]))

    def table(self, counts: Mapping[str, Tensor]) -> StepTable:
        """All of them."""
        return tuple(
            tuple(self.steps(counts, kind, threshold) for kind in range(self.classes))
            for threshold in range(len(self.thresholds))
        )

    def precisions(self, counts: Mapping[str, Tensor], *, best: bool = False) -> Tensor:
        """Average precision, (thresholds, classes); NaN for classes without objects."""
        return measured(self.table(counts), lambda steps: average_precision(steps, best=best))

    def estimates(self, counts: Mapping[str, Tensor]) -> Tensor:
        """The same, estimated for unrounded scores."""
        return measured(self.table(counts), spread_precision)

    def recalls(self, counts: Mapping[str, Tensor]) -> Tensor:
        """Final recall, (thresholds, classes); NaN for classes without objects."""
        return measured(self.table(counts), final_recall)

    def bounds(self, counts: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Mean average precision at each threshold, and its maximum for unrounded scores.

        The unrounded value lies between the two; the first is the one to report.
        """
        return self.precisions(counts).nanmean(dim=1), self.precisions(counts, best=True).nanmean(dim=1)

    def metrics(self, counts: Mapping[str, Tensor]) -> dict[str, float]:
        """Means over the classes that have objects: `map_25`, `recall_25` and so on for each threshold.

        >>> tally = Tally(classes=3)
        >>> box, counts = torch.tensor([[0.0, 0, 0, 1, 1, 1, 0]]), tally.empty()
        >>> tally.add(counts, box, torch.tensor([0.6]), torch.tensor([2]), box, torch.tensor([2]))
        >>> tally.metrics(counts)
        {'map_25': 1.0, 'recall_25': 1.0, 'map_50': 1.0, 'recall_50': 1.0}
        """
        precisions, recalls = self.precisions(counts).nanmean(dim=1), self.recalls(counts).nanmean(dim=1)
        said: dict[str, float] = {}
        for threshold, precision, recall in zip(self.thresholds, precisions, recalls, strict=True):
            name = f"{round(100 * threshold)}"
            said |= {f"map_{name}": float(precision), f"recall_{name}": float(recall)}
        return said

    def _check(self, scores: Tensor, classes: Tensor, labels: Tensor) -> None:
        for name, kinds in (("detection", classes), ("true box", labels)):
            unknown = (kinds < 0) | (kinds >= self.classes)
            if unknown.any():
                row = int(unknown.nonzero()[0])
                raise InputError(f"{name} {row} is of class {int(kinds[row])}, but classes are 0 to {self.classes - 1}")
        outside = ~((scores >= 0) & (scores <= 1))
        if outside.any():
            row = int(outside.nonzero()[0])
            raise InputError(f"detection {row} has the score {float(scores[row])}, which is not between 0 and 1")
