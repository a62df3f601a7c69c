"""3D boxes: geometry, IoU, suppression, matching and average precision of detections. Usable on its own."""

from fedstill.detection.boxes.assignment import (
    SCANNET,
    SUN_RGBD,
    MatchingWeights,
    assign,
    assign_scenes,
    matching_costs,
)
from fedstill.detection.boxes.box_geometry import check_boxes, footprints, lies_in, volumes
from fedstill.detection.boxes.correctness import THRESHOLDS, judge
from fedstill.detection.boxes.iou import generalised_iou, iou, pairwise_generalised_iou, pairwise_iou
from fedstill.detection.boxes.precision import Steps, average_precision, final_recall, recall_precision
from fedstill.detection.boxes.score_histogram import Tally
from fedstill.detection.boxes.suppression import suppress, usable

__all__ = [
    "SCANNET",
    "SUN_RGBD",
    "THRESHOLDS",
    "MatchingWeights",
    "Steps",
    "Tally",
    "assign",
    "assign_scenes",
    "average_precision",
    "check_boxes",
    "final_recall",
    "footprints",
    "generalised_iou",
    "iou",
    "judge",
    "lies_in",
    "matching_costs",
    "pairwise_generalised_iou",
    "pairwise_iou",
    "recall_precision",
    "suppress",
    "usable",
    "volumes",
]
