"""From a detector's outputs to the boxes that are evaluated, in two protocols.

`published` is the evaluation of VoteNet (Qi et al., 2019, https://arxiv.org/abs/1904.09664) and 3DETR (Misra et al.,
2021, https://arxiv.org/abs/2109.08141), with which published tables are computed:

1. objectness = 1 - p(no object); class probabilities are not renormalised
2. boxes with fewer than 5 points inside, in the box as it is turned, are removed; if all would be, the most object-like
   one stays
3. non-maximum suppression by objectness among boxes with the same most likely class, on axis-aligned hulls, above an
   IoU of 0.25
4. every class of each remaining box with an objectness above 0.05 is a proposal with score p(class) * objectness

`strict` has one proposal for each query, its most likely class other than "no object" with that probability as score,
after suppression among boxes of a class by their own IoU. A box cannot be right by one of its unlikely classes, so
recall is lower.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

import torch
from torch import Tensor

from fedstill.detection.boxes import aligned_hulls, points_inside, suppress, usable
from fedstill.detection.detection_section import ProtocolName

OVERLAP = 0.25  # IoU of two detections of a class above which the lower-ranked one is removed
FEWEST_INSIDE = 5  # points in a box
LEAST_OBJECTNESS = 0.05  # proposals have more


@dataclass(frozen=True)
class Proposals:
    """What is evaluated in one scene: proposals are a box, by its row, with a class and a score."""

    boxes: Tensor  # (m, 7)
    rows: Tensor  # (n,)
    scores: Tensor  # (n,)
    classes: Tensor  # (n,)


class Propose(Protocol):
    """A protocol: log-probabilities (queries, classes + 1), boxes (queries, 7) and points (points, 3) of one scene."""

    def __call__(self, log_probabilities: Tensor, boxes: Tensor, points: Tensor) -> Proposals: ...


def published(log_probabilities: Tensor, boxes: Tensor, points: Tensor) -> Proposals:
    """Every class of each box that remains; by descending objectness, then by class."""
    chances, boxes = log_probabilities.double().exp(), boxes.double()
    fit = usable(boxes, chances.sum(dim=-1))
    chances, boxes = chances[fit], boxes[fit]
    objectness, kinds = 1 - chances[:, -1], chances[:, :-1]
    kept = _with_points(objectness, boxes, points.double())
    order = suppress(aligned_hulls(boxes[kept]), objectness[kept], kinds[kept].argmax(dim=-1), OVERLAP)
    kept = kept[order]
    rows = torch.arange(len(kept)).repeat_interleave(kinds.shape[1])
    scores = (kinds[kept] * objectness[kept, None]).flatten()
    return Proposals(boxes[kept], rows, scores, torch.arange(kinds.shape[1]).repeat(len(kept)))


def _with_points(objectness: Tensor, boxes: Tensor, points: Tensor) -> Tensor:
    """Which boxes with enough objectness also have enough points, or are the one that stays where none has.

    A box with too little objectness suppresses only boxes with even less, so it is left out here; but as long as one of
    them has points, no box without points stays.
    """
    likely = objectness > LEAST_OBJECTNESS
    filled = torch.zeros_like(likely)
    filled[likely] = points_inside(points, boxes[likely]) >= FEWEST_INSIDE
    if filled.any() or not likely.any() or (points_inside(points, boxes[~likely]) >= FEWEST_INSIDE).any():
        return filled.nonzero().squeeze(1)
    return objectness.argmax().unsqueeze(0)


def strict(log_probabilities: Tensor, boxes: Tensor, points: Tensor) -> Proposals:
    """The most likely class of each query other than "no object", by descending probability."""
    return strict_above(log_probabilities, boxes)


def strict_above(log_probabilities: Tensor, boxes: Tensor, overlap: float = OVERLAP, least: float = 0.0) -> Proposals:
    """The same without proposals below a score."""
    scores, classes = log_probabilities[:, :-1].exp().max(dim=-1)
    fit = usable(boxes, scores) & (scores >= least)
    boxes, scores, classes = boxes[fit], scores[fit], classes[fit]
    kept = suppress(boxes, scores, classes, overlap)
    return Proposals(boxes[kept], torch.arange(len(kept)), scores[kept], classes[kept])


PROPOSE: Mapping[ProtocolName, Propose] = MappingProxyType({"published": published, "strict": strict})
