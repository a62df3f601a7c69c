"""Oriented boxes in space: IoU, suppression and average precision, as the detection task computes them.

>>> import torch
>>> boxes = torch.tensor([[0.0, 0.0, 0.0, 2.0, 2.0, 2.0, 0.0], [1.0, 0.0, 0.0, 2.0, 2.0, 2.0, 0.0]])
>>> round(iou(boxes[0], boxes[1]).item(), 4)  # 4 of 12
0.3333
>>> suppress(boxes, torch.tensor([0.9, 0.8]), torch.tensor([0, 0]), threshold=0.25).tolist()
[0]

A box is seven numbers: its centre x y z, its full sizes dx dy dz, and its heading, in radians about the vertical,
counter-clockwise seen from above. For the average precision of a class, `judge` the detections of each scene, and pass
scores and verdicts of all scenes to `Steps.of`.
"""

from fedstill.detection.boxes import (
    THRESHOLDS,
    Steps,
    average_precision,
    check_boxes,
    final_recall,
    footprints,
    generalised_iou,
    iou,
    judge,
    lies_in,
    pairwise_generalised_iou,
    pairwise_iou,
    recall_precision,
    suppress,
    usable,
    volumes,
)

__all__ = [
    "THRESHOLDS",
    "Steps",
    "average_precision",
    "check_boxes",
    "final_recall",
    "footprints",
    "generalised_iou",
    "iou",
    "judge",
    "lies_in",
    "pairwise_generalised_iou",
    "pairwise_iou",
    "recall_precision",
    "suppress",
    "usable",
    "volumes",
]
