"""Which detections in a scene are true positives."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedstill.core.errors import InputError
from fedstill.detection.boxes.box_geometry import check_boxes
from fedstill.detection.boxes.iou import pairwise_iou
from fedstill.detection.boxes.suppression import check_detections

THRESHOLDS = (0.25, 0.5)


@torch.no_grad()
def judge(
    boxes: Tensor,
    scores: Tensor,
    classes: Tensor,
    truth: Tensor,
    labels: Tensor,
    thresholds: Sequence[float] = THRESHOLDS,
) -> Tensor:
    """For each IoU threshold and each detection of one scene, whether it is a true positive, (thresholds, detections).

    A detection is compared only with the object of its class with the highest IoU (the first of equals). It is a true
    positive if that IoU is *above* the threshold and no detection with a higher score is a true positive for the same
    object. Of equal scores one is a true positive; which one does not change any metric here, since these treat equal
    scores together.

    >>> there = torch.tensor([[0.0, 0, 0, 2, 2, 2, 0]])
    >>> twice = torch.tensor([[0.0, 0, 0, 2, 2, 1, 0], [0, 0, 0, 2, 2, 2, 0]])
    >>> judge(twice, torch.tensor([0.9, 0.8]), torch.tensor([4, 4]), there, torch.tensor([4])).tolist()
    [[True, False], [False, True]]
    """
    check_detections(boxes, scores, classes)
    check_boxes(truth, "ground truth")
    if labels.shape != (len(truth),):
        raise InputError(
            f"each of {len(truth)} true boxes needs one class, but these are of shape {tuple(labels.shape)}"
        )
    overlaps = pairwise_iou(boxes, truth.to(boxes)) if len(boxes) and len(truth) else boxes.new_zeros(len(boxes), 0)
    return judge_overlaps(overlaps, scores, classes, labels, thresholds)


def judge_overlaps(
    overlaps: Tensor, scores: Tensor, classes: Tensor, labels: Tensor, thresholds: Sequence[float] = THRESHOLDS
) -> Tensor:
    """The same from the IoU of each detection with each object, (detections, objects)."""
    right = np.zeros((len(thresholds), len(overlaps)), dtype=bool)
    if overlaps.numel():
        own = overlaps.masked_fill(classes[:, None] != labels, -1.0).cpu().numpy()
        order = torch.argsort(scores, descending=True, stable=True).cpu().numpy()
        seen, best = own.argmax(axis=1), own.max(axis=1)
        for row, threshold in enumerate(thresholds):
            near = order[best[order] > threshold]
            _, first = np.unique(seen[near], return_index=True)
            right[row, near[first]] = True
    return torch.from_numpy(right)
