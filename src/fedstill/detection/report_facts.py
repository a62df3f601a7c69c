"""Detections of a run in its test scenes, evaluated again from the stored record in the run's own protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from fedstill.detection.boxes import (
    THRESHOLDS,
    Steps,
    StepTable,
    average_precision,
    judge,
    pairwise_iou,
    recall_precision,
    steps_by_class,
)
from fedstill.detection.detection_section import protocol_of
from fedstill.runtime.result import Run

Scene = Mapping[str, Any]
Point = tuple[float, float]


@dataclass(frozen=True)
class Judged:
    """A run's detections with its title and its index among all runs of the page."""

    title: str
    index: int
    classes: tuple[str, ...]
    scenes: Sequence[Scene]  # the ground truth; the first few with points
    found: Sequence[Scene]  # the detections, by descending score
    steps: StepTable

    def precisions(self, threshold: int) -> list[float | None]:
        """The average precision of every class at a threshold, by its index; None for classes without objects."""
        every = [average_precision(steps) for steps in self.steps[threshold]]
        return [None if isnan(one) else one for one in every]

    def mean(self, threshold: int) -> float:
        """The mean over the classes that occur."""
        return fmean([one for one in self.precisions(threshold) if one is not None] or [0.0])

    def objects(self) -> list[int]:
        """The number of objects of each class."""
        return [steps.truths for steps in self.steps[0]]


def judged(title: str, index: int, run: Run) -> Judged | None:
    """The last model; None without stored detections: there is no shared model, or it was evaluated on-site."""
    scenes, found = run.test_scenes, run.detections("last")
    if not scenes or len(found) != len(scenes):
        return None
    classes = tuple(run.config["classes"])
    protocol = protocol_of(run.experiment)
    counted = [one.get(protocol, one) for one in found]  # runs of earlier versions have strict ones only
    return Judged(title, index, classes, scenes, found, steps_of(scenes, counted, len(classes)))


def steps_of(scenes: Sequence[Scene], found: Sequence[Scene], classes: int) -> StepTable:
    """The input of the precision-recall curves."""
    right, scores, kinds, labels = [], [], [], []
    for scene, one in zip(scenes, found, strict=True):
        score, kind = torch.tensor(one["scores"], dtype=torch.float64), _classes_of(one)
        boxes = boxes_of(one)[one["rows"]] if "rows" in one else boxes_of(one)
        right.append(judge(boxes, score, kind, boxes_of(scene), _classes_of(scene)))
        scores.append(score)
        kinds.append(kind)
        labels.append(_classes_of(scene))
    objects = torch.bincount(torch.cat(labels), minlength=classes)
    return steps_by_class(torch.cat(scores), torch.cat(right, dim=1), torch.cat(kinds), objects)


def boxes_of(scene: Scene) -> Tensor:
    return torch.tensor(scene["boxes"], dtype=torch.float64).reshape(-1, 7)


def _classes_of(scene: Scene) -> Tensor:
    return torch.tensor(scene["classes"], dtype=torch.int64)


def owners(scene: Scene, found: Scene) -> list[int | None]:
    """The number of the true box that each detection in a scene matches, at the lowest threshold."""
    boxes, kinds = boxes_of(found), _classes_of(found)
    truth, labels = boxes_of(scene), _classes_of(scene)
    right = judge(boxes, torch.tensor(found["scores"], dtype=torch.float64), kinds, truth, labels, THRESHOLDS[:1])[0]
    if not len(truth):
        return [None] * len(boxes)
    nearest = pairwise_iou(boxes, truth).masked_fill(kinds[:, None] != labels, -1.0).argmax(dim=1)
    return [int(number) if sure else None for number, sure in zip(nearest, right, strict=True)]


def envelope(steps: Steps) -> list[Point]:
    """The precision-recall envelope of average precision: the best precision at this recall or a higher one.

    The result is the corners of a staircase, from a recall of 0 to the last one reached.

    >>> steps = Steps.of(torch.tensor([0.9, 0.8, 0.7]), torch.tensor([True, False, True]), truths=4)
    >>> envelope(steps) == [(0.0, 1.0), (0.25, 1.0), (0.25, 2 / 3), (0.5, 2 / 3)]
    True
    """
    if not steps.truths or not int(steps.right.sum()):
        return []
    recall, precision = recall_precision(steps)
    best = precision.flip(0).cummax(0).values.flip(0)
    corners: list[Point] = []
    before = 0.0
    for at, high in zip(recall.tolist(), best.tolist(), strict=True):
        if at == before:
            continue
        if corners and corners[-1][1] == high:
            corners[-1] = (at, high)
        else:
            corners += [(before, high), (at, high)]
        before = at
    return corners


def mean_envelope(every: Sequence[Steps], places: int = 200) -> list[Point]:
    """The mean precision over the classes that occur, at this many steps of recall.

    Classes whose detections end before a recall are left out there.
    """
    curves = [envelope(steps) for steps in every if steps.truths]
    if not any(curves):
        return []
    last = max(curve[-1][0] for curve in curves if curve)
    grid = [step / places for step in range(places + 1) if step / places <= last]
    return [(recall, fmean(_at(curve, recall) for curve in curves)) for recall in grid]


def _at(curve: Sequence[Point], recall: float) -> float:
    """The precision of a staircase at a recall."""
    return next((high for at, high in curve if at >= recall), 0.0)
