"""3D boxes: geometry, IoU, suppression, matching and average precision of detections. Usable on its own."""

from fedstill.detection.boxes.assignment import (
    SCANNET,
    SUN_RGBD,
    MatchingWeights,
    assign,
    assign_scenes,
    matching_costs,
)
from fedstill.detection.boxes.box_geometry import (
    aligned_hulls,
    check_boxes,
    footprints,
    lies_in,
    points_inside,
    volumes,
)
from fedstill.detection.boxes.correctness import THRESHOLDS, judge, judge_overlaps
from fedstill.detection.boxes.iou import generalised_iou, iou, pairwise_generalised_iou, pairwise_iou
from fedstill.detection.boxes.precision import (
    Steps,
    StepTable,
    average_precision,
    final_recall,
    measured,
    recall_precision,
    spread_precision,
    steps_by_class,
)
from fedstill.detection.boxes.score_histogram import Tally
from fedstill.detection.boxes.suppression import suppress, usable

__all__ = [
    "SCANNET",
    "SUN_RGBD",
    "THRESHOLDS",
    "MatchingWeights",
    "StepTable",
    "Steps",
    "Tally",
    "aligned_hulls",
    "assign",
    "assign_scenes",
    "average_precision",
    "check_boxes",
    "final_recall",
    "footprints",
    "generalised_iou",
    "iou",
    "judge",
    "judge_overlaps",
    "lies_in",
    "matching_costs",
    "measured",
    "pairwise_generalised_iou",
    "pairwise_iou",
    "points_inside",
    "recall_precision",
    "spread_precision",
    "steps_by_class",
    "suppress",
    "usable",
    "volumes",
]
