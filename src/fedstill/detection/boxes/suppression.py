"""Of several detections of the same thing, the surest one."""

from __future__ import annotations

import torch
from torch import Tensor

from fedstill.core.errors import InputError
from fedstill.detection.boxes.box_geometry import check_boxes
from fedstill.detection.boxes.iou import iou


def suppress(boxes: Tensor, scores: Tensor, classes: Tensor, threshold: float = 0.25) -> Tensor:
    """Which detections remain, surest first: one goes if a surer one of its class that remains overlaps it too much.

    Too much is an IoU *above* the threshold. Of equal scores the one with the lower index is the surer.

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
    """Refuse detections that are incomplete or no numbers."""
    check_boxes(boxes, "detections")
    if scores.shape != (len(boxes),) or classes.shape != (len(boxes),):
        given = f"{tuple(scores.shape)} and {tuple(classes.shape)}"
        raise InputError(f"each of {len(boxes)} detections needs one score and one class, but they have shapes {given}")
    if not scores.isfinite().all():
        raise InputError(f"detection {int((~scores.isfinite()).nonzero()[0])} has a score that is not finite")


def usable(boxes: Tensor, scores: Tensor) -> Tensor:
    """Which of a model's detections (..., 7) can be judged at all: finite, and of no negative size.

    A model that diverges is no wrong input: leave these out, and count them.
    """
    return boxes.isfinite().all(dim=-1) & scores.isfinite() & (boxes[..., 3:6] >= 0).all(dim=-1)
