"""A linear probe of an encoder: how much of the objects its features contain, measured on held-out scenes.

A reconstruction loss can fall while detection gets worse. The probe measures what a frozen encoder is for: a linear
classifier of its tokens is fitted on some labelled scenes, and scored on others. The target of a token is the class of
the smallest box that contains it, or "nothing". The classifier is a ridge regression onto these targets in which every
class has the same weight; the score is the mean recall of the classes, so that guessing scores 1 / (classes + 1).

The encoder is only read: its weights, its BatchNorm statistics and the random streams of its training stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedstill.core.dataset import Dataset, every_row
from fedstill.detection.detection_losses import boxes_around
from fedstill.detection.model import Detector

FITTED_SCENES, SCORED_SCENES = 200, 100  # at most
_TOKENS = 256  # of a scene, at most: the first ones, which farthest-point sampling spreads over the scene
_BATCH = 16  # scenes
_RIDGE = 1e-3  # relative to the mean square of the standardised features, which is 1


@dataclass(frozen=True)
class LinearProbe:
    """Scenes with boxes: the first of `fitted` train the classifier, the first of `scored` measure it."""

    fitted: Dataset
    scored: Dataset
    classes: int

    @property
    def chance(self) -> float:
        return 1 / (self.classes + 1)

    def score(self, detector: Detector) -> float:
        """The mean recall of the classes, and of tokens outside all boxes, over the tokens of the scored scenes."""
        was_training, was_prompted = detector.training, detector.prompted
        detector.eval()
        detector.prompted = False
        try:
            features, targets = self._tokens(detector, self.fitted, FITTED_SCENES)
            held_out, truth = self._tokens(detector, self.scored, SCORED_SCENES)
        finally:
            detector.train(was_training)
            detector.prompted = was_prompted
        if not (features.isfinite().all() and held_out.isfinite().all()):
            return float("nan")
        return mean_recall(ridge(features, targets, self.classes + 1, held_out).argmax(dim=1), truth)

    @torch.no_grad()
    def _tokens(self, detector: Detector, data: Dataset, most: int) -> tuple[Tensor, Tensor]:
        """The features of tokens of the first scenes in double precision, and their targets."""
        features, targets = [], []
        for rows in every_row(data, _BATCH):
            rows = rows[rows < most]
            if not len(rows):
                break
            batch = data.batch(rows)
            points = batch["inputs"].to(detector.prompts.device)
            positions, encoded = (one[:, :_TOKENS] for one in detector.encode(points, *detector.bounds(points)))
            features.append(encoded.flatten(0, 1).double().cpu())
            targets.append(_targets(positions.cpu(), batch["labels"], batch["boxes"], self.classes).flatten())
        return torch.cat(features), torch.cat(targets)


def _targets(positions: Tensor, labels: Tensor, boxes: Tensor, classes: int) -> Tensor:
    """The class of the smallest box around each token (scenes, tokens); the number of classes where there is none."""
    inside, volume = boxes_around(positions, boxes, labels >= 0)
    found = labels.unsqueeze(1).expand(volume.shape).gather(2, volume.argmin(dim=2, keepdim=True)).squeeze(2)
    return torch.where(inside, found, classes)


def ridge(features: Tensor, targets: Tensor, classes: int, others: Tensor) -> Tensor:
    """Scores of `others` by class, from a ridge regression on one-hot targets in which classes weigh the same.

    >>> line = torch.tensor([[0.0], [0.1], [0.2], [1.0]]).double()
    >>> ridge(line, torch.tensor([0, 0, 0, 1]), 2, torch.tensor([[0.3], [0.8]]).double()).argmax(dim=1).tolist()
    [0, 1]
    """
    counts = torch.bincount(targets, minlength=classes)
    weights = (1 / counts.double())[targets].unsqueeze(1) / (counts > 0).sum()
    centre = (weights * features).sum(dim=0)
    spread = (weights * (features - centre).square()).sum(dim=0).sqrt().clamp(min=1e-9)
    rows = F.pad((features - centre) / spread, (0, 1), value=1.0)
    square = rows.T @ (weights * rows) + _RIDGE * torch.eye(rows.shape[1], dtype=rows.dtype)
    solved: Tensor = torch.linalg.solve(square, rows.T @ (weights * F.one_hot(targets, classes)))
    return F.pad((others - centre) / spread, (0, 1), value=1.0) @ solved


def mean_recall(found: Tensor, truth: Tensor) -> float:
    """The mean over the classes that occur of the share of their tokens that were found.

    >>> mean_recall(torch.tensor([0, 0, 1, 1]), torch.tensor([0, 0, 0, 1]))
    0.8333333333333333
    """
    counts = torch.bincount(truth)
    right = torch.bincount(truth[found == truth], minlength=len(counts))
    there = counts > 0
    return float((right[there] / counts[there].double()).mean())
