"""Non-maximum suppression: of several detections of the same object, keep the one with the highest score."""

from __future__ import annotations

import torch
from torch import Tensor

from fedstill.core.errors import InputError
from fedstill.detection.boxes.box_geometry import check_boxes
from fedstill.detection.boxes.iou import iou


def suppress(boxes: Tensor, scores: Tensor, classes: Tensor, threshold: float = 0.25) -> Tensor:
    """The remaining detections by descending score: one is removed if a kept one of its class overlaps it too much.

    Too much is an IoU *above* the threshold. Of equal scores the lower index ranks first.

    >>> boxes = torch.tensor([[0.0, 0, 0, 2, 2, 2, 0], [0.1, 0, 0, 2, 2, 2, 0], [9, 0, 0, 2, 2, 2, 0]])
    >>> suppress(boxes, torch.tensor([0.5, 0.9, 0.7]), torch.tensor([3, 3, 3])).tolist()
    [1, 2]
    >>> suppress(boxes, torch.tensor([0.5, 0.9, 0.7]), torch.tensor([2, 3, 3])).tolist()
    [1, 2, 0]
    """
    check_detections(boxes, scores, classes)
    order = torch.argsort(scores, descending=True, stable=True)
    boxes, classes = boxes[order].detach(), classes[order]
    surer, other = torch.triu(classes[:, None] == classes, diagonal=1).nonzero(as_tuple=True)
    overlapping = torch.zeros(len(boxes), len(boxes), dtype=torch.bool, device=boxes.device)
    overlapping[surer, other] = iou(boxes[surer], boxes[other]) > threshold
    suppresses = overlapping.cpu().numpy()
    remains = torch.ones(len(boxes), dtype=torch.bool).numpy()
    for row in range(len(boxes)):
        if remains[row]:
            remains &= ~suppresses[row]
    return order[torch.from_numpy(remains).to(order.device)]


def check_detections(boxes: Tensor, scores: Tensor, classes: Tensor) -> None:
    """Refuse incomplete or non-finite detections."""
    check_boxes(boxes, "detections")
    if scores.shape != (len(boxes),) or classes.shape != (len(boxes),):
        given = f"{tuple(scores.shape)} and {tuple(classes.shape)}"
        raise InputError(f"each of {len(boxes)} detections needs one score and one class, but they have shapes {given}")
    if not scores.isfinite().all():
        raise InputError(f"detection {int((~scores.isfinite()).nonzero()[0])} has a score that is not finite")


def usable(boxes: Tensor, scores: Tensor) -> Tensor:
    """Which of a model's detections (..., 7) can be evaluated: finite, and without negative sizes.

    A diverging model is not an input error: leave these out, and count them.
    """
    return boxes.isfinite().all(dim=-1) & scores.isfinite() & (boxes[..., 3:6] >= 0).all(dim=-1)
