"""Distillation of a detector into a smaller one: the teacher's detections serve as ground truth.

A detector's outputs are unordered, so the student's queries are first matched, one to one and at the least cost
(`detection/detection_losses.py`), with the teacher's findings: those of its queries that are confident in an object.
With M matched queries in a batch, the terms on them are

    soft-targets    T^2 KL(teacher || student) over the classes and "no object", mean over M
    box-targets     centre, size, gIoU and angle as the task weighs them, with the teacher's boxes as ground truth
    hint            (phi(q_s) - q_t)^2, mean over M and width; q are the features of queries, phi a linear map

and those on everything else

    empty-queries   -log p("no object") of queries without a match, as the task weighs it
    token-targets   the task's token losses, with the teacher's boxes as ground truth

Without the latter a student without labels would detect something in every query, and its tokens would not learn where
objects are. Each layer of the student's decoder has its own matches, and its terms are summed; hints are for the last
one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedstill.core.settings import Settings
from fedstill.detection.boxes import suppress, usable
from fedstill.detection.detection_losses import BOX_TERMS, Losses, detection_losses
from fedstill.detection.detection_task import Detected
from fedstill.detection.model import Predictions
from fedstill.detection.proposals import OVERLAP
from fedstill.distillation.features import hint
from fedstill.distillation.logits import soft_targets
from fedstill.distillation.objective import Adapters, Lesson, Objective, Softened, Terms, objectives, projection
from fedstill.distillation.outputs import Found


@dataclass(frozen=True)
class TeachingQueries:
    """The teacher queries to distil, (scenes, most in a scene, ...); padding has the label -1."""

    queries: Tensor  # their numbers
    labels: Tensor  # the likeliest class
    boxes: Tensor  # (..., 7)


def findings(teacher: Found, least: float) -> TeachingQueries:
    """The confident teacher queries: those with a class of at least that probability, and a valid box.

    As in its detections, of overlapping ones of a class only the one with the highest score counts: a student that
    learnt both would learn to detect objects twice.

    >>> sure = torch.tensor([[[0.1, 0.1, 0.8], [0.2, 0.7, 0.1]]]).log()  # nothing, and something of class 1
    >>> found = findings(Found(sure, torch.zeros(1, 1), boxes=torch.ones(1, 2, 7), queries=torch.zeros(1, 2, 1)), 0.5)
    >>> found.queries.tolist(), found.labels.tolist()
    ([[1]], [[1]])
    """
    scores, kinds = teacher.log_probabilities[..., :-1].exp().max(dim=-1)
    sure = usable(teacher.boxes, scores) & (scores >= least)
    for scene, boxes in enumerate(teacher.boxes):
        rows = sure[scene].nonzero().squeeze(1)
        kept = rows[suppress(boxes[rows], scores[scene, rows], kinds[scene, rows], OVERLAP)]
        sure[scene] = torch.zeros_like(sure[scene]).index_fill(0, kept, True)
    first = torch.argsort((~sure).to(torch.uint8), dim=1, stable=True)[:, : int(sure.sum(dim=1).max())]
    labels = torch.where(sure, kinds, -1).gather(1, first)
    return TeachingQueries(first, labels, teacher.boxes.gather(1, first.unsqueeze(-1).expand(-1, -1, 7)))


class MatchingSettings(Softened):
    beta: float = Field(1.0, ge=0, description="beta: weight of the features of matched queries, beside soft targets")
    least: float = Field(
        0.5, ge=0, le=1, description="lowest class probability of the teacher for a query to be distilled"
    )


@objectives.register("detector")
class DetectorMatching(Objective):
    """Detectors: (1-a) task + a (T^2 KL + boxes + b MSE(phi(q_s), q_t)) of queries matched with the teacher's findings.

    This follows the idea of *DETRDistill: A Universal Knowledge Distillation Framework for DETR-families*, Chang et
    al., 2022, https://arxiv.org/abs/2211.10156, on 3D boxes.

    In the paper the student is also matched with the teacher's negative predictions, features are those of the image,
    and the teacher's own queries are decoded by the student as well. Here a query without a match learns to predict "no
    object", and tokens learn the positions of the teacher's boxes (see above). `task` are all terms of the detection
    loss. Without labels alpha is 1.
    """

    name = "detector"
    Options: ClassVar[type[Settings]] = MatchingSettings
    settings: MatchingSettings
    compares_features = True
    students = frozenset({"detector"})

    def label_weight(self) -> float:
        return 1 - self.settings.alpha

    def label_free_settings(self) -> Settings:
        return self.settings.model_copy(update={"alpha": 1.0})

    def adapters(self, student_width: int, teacher_width: int) -> Adapters:
        return projection(student_width, teacher_width)

    def from_teacher(self, lesson: Lesson) -> Terms:
        student, teacher = lesson.student, lesson.teacher
        assert isinstance(student, Detected)
        assert isinstance(teacher, Found)
        found = findings(teacher, self.settings.least)
        losses = detection_losses(student.predictions, found.labels, found.boxes)
        terms, alpha = losses.terms(), self.settings.alpha
        empty = torch.stack([layer.others for layer in losses.layers]).sum() / losses.counts["queries"]
        return {
            "soft-targets": alpha * self._soft_targets(student.predictions, teacher, found, losses),
            "box-targets": alpha * torch.stack([terms[name] for name in BOX_TERMS]).sum(),
            "empty-queries": alpha * empty,
            "token-targets": alpha * terms["tokens"],
            "hint": alpha * self.settings.beta * self._hint(lesson, student, teacher, found, losses),
        }

    def _soft_targets(self, student: Predictions, teacher: Found, found: TeachingQueries, losses: Losses) -> Tensor:
        sums = []
        for layer, own in zip(student.layers, losses.layers, strict=True):
            scenes, queries, things = own.pairs
            ours = layer.log_probabilities[scenes, queries]
            aims = teacher.log_probabilities[scenes, found.queries[scenes, things]]
            sums.append(soft_targets(ours, aims, self.settings.temperature) if len(ours) else ours.sum())
        return torch.stack(sums).sum()

    def _hint(
        self, lesson: Lesson, student: Detected, teacher: Found, found: TeachingQueries, losses: Losses
    ) -> Tensor:
        scenes, queries, things = losses.layers[-1].pairs
        theirs = teacher.queries[scenes, found.queries[scenes, things]]
        ours, aims = self.mapped(lesson, student.queries[scenes, queries], theirs)
        # Not normalised to length one: queries already end with a normalisation layer.
        return hint(ours, aims, normalise=False) if len(ours) else ours.sum()
