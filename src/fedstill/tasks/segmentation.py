"""Segmentation of point clouds: a label for every point, with the usual intersection-over-union metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedstill.core.dataset import Batch, Dataset, every_row
from fedstill.core.errors import InputError
from fedstill.core.task import Output
from fedstill.tasks.classification import Classification, Weigh, metrics_from, weighted_nll
from fedstill.tasks.task_choice import tasks

if TYPE_CHECKING:
    from fedstill.models.portable.file_form import FileForm

_EVALUATION_BATCH = 16  # clouds per batch: a model stores features for every point and its neighbours


@tasks.register("segmentation")
@dataclass(frozen=True)
class Segmentation(Classification):
    """Classification of each point of a cloud into `classes`; batches contain labels (batch, points).

    All points have equal weight in loss and accuracy, whatever cloud they belong to.
    """

    def augment(self, batch: Batch, generator: np.random.Generator) -> Batch:
        """Augments points and labels; a dropped point is replaced by point 0, and so is its label."""
        changed = dict(self.augmentation(batch, generator))
        if "labels" in changed:
            labels, moved = point_labels(changed), changed["inputs"]
            became_first = (moved == moved[:, :1]).all(dim=2)
            changed["labels"] = torch.where(became_first, labels[:, :1], labels)
        return changed

    def file_form(self) -> FileForm:
        raise InputError(
            f"{self.architectures[0]} labels every point: only models that classify whole inputs or find boxes can be"
            " exported"
        )

    def labels_of(self, batch: Batch) -> Tensor:
        return point_labels(batch).to(self.device)

    def labelled_rows(self, outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        return outputs.flatten(0, 1), labels.flatten()

    def weighted(self, output: Output, batch: Batch, weigh: Weigh) -> dict[str, Tensor]:
        """As in classification, per point: `weigh` is called once for all points of the batch."""
        if "labels" not in batch:
            return {}
        rows, labels = self.labelled_rows(output.log_probabilities, self.labels_of(batch))
        return {"cross-entropy": weighted_nll(rows, labels, weigh, output.class_weights)}

    def score(self, models: Iterable[nn.Module], data: Dataset) -> Mapping[str, Tensor]:
        """Sums over points (confusion matrix with truth in rows, loss, non-finite outputs) and over shapes."""
        size = len(self.classes)
        scores = {
            "confusion": torch.zeros(size, size, dtype=torch.int64),
            "loss": torch.zeros((), dtype=torch.float64),
            "non-finite": torch.zeros((), dtype=torch.int64),
            "shape-iou": torch.zeros((), dtype=torch.float64),
            "shapes": torch.zeros((), dtype=torch.int64),
        }
        for model in models:
            model.eval()
            for rows in every_row(data, _EVALUATION_BATCH):
                batch = data.batch(rows)
                with torch.inference_mode():
                    logits = self.forward(model, batch).log_probabilities.cpu()
                labels = point_labels(batch)
                finite = logits.isfinite().all(dim=2)
                # As in classification: non-finite outputs count as class 0, and their number is reported separately.
                each = confusions(labels, torch.where(finite, logits.argmax(dim=2), 0), size)
                scores["confusion"] += each.sum(dim=0)
                scores["loss"] += F.nll_loss(logits.flatten(0, 1), labels.flatten(), reduction="sum").double()
                scores["non-finite"] += (~finite).sum()
                scores["shape-iou"] += shape_iou(each).sum()
                scores["shapes"] += len(rows)
        return scores

    def summarise(self, scores: Mapping[str, Tensor]) -> Mapping[str, float]:
        return segmentation_metrics(scores)

    def class_metrics(self, scores: Mapping[str, Tensor]) -> None:
        """A cloud has a class for each of its points: its own metrics are those of `summarise`."""


def point_labels(batch: Batch) -> Tensor:
    """The labels of the points in use: for a cloud cut to its first points, the first labels."""
    return batch["labels"][:, : batch["inputs"].shape[1]]


def confusions(labels: Tensor, guesses: Tensor, classes: int) -> Tensor:
    """A confusion matrix (truth in rows) for each cloud, (clouds, classes, classes).

    >>> confusions(torch.tensor([[0, 0, 1]]), torch.tensor([[0, 1, 1]]), 2).tolist()
    [[[1, 1], [0, 1]]]
    """
    clouds = torch.arange(len(labels)).unsqueeze(1)
    cells = (clouds * classes + labels) * classes + guesses
    counts = torch.bincount(cells.flatten(), minlength=len(labels) * classes * classes)
    return counts.view(len(labels), classes, classes)


def intersection_over_union(confusion: Tensor) -> Tensor:
    """IoU of each class, from confusion matrices (..., classes, classes); NaN for absent, unpredicted classes."""
    both = confusion.diagonal(dim1=-2, dim2=-1).double()
    return both / (confusion.sum(dim=-1) + confusion.sum(dim=-2) - both)


def shape_iou(each: Tensor) -> Tensor:
    """The IoU of each cloud, averaged over the parts that are present or predicted.

    This is stricter than the ShapeNet-part convention, where predictions are limited to the parts of the shape's
    category and a part that is neither present nor predicted counts as correct.

    >>> shape_iou(torch.tensor([[[1, 1, 0], [0, 2, 0], [0, 0, 0]]])).tolist()  # 1/2 and 2/3; the third part is absent
    [0.5833333333333333]
    """
    return intersection_over_union(each).nanmean(dim=-1)


def segmentation_metrics(scores: Mapping[str, Tensor]) -> dict[str, float]:
    """Point accuracies as in classification, and two means of intersection over union, from summed scores.

    `mean_iou` is the mean over the classes that have points; `instance_iou` the mean over shapes.

    >>> scores = {"confusion": torch.tensor([[6, 2], [0, 2]]), "loss": torch.tensor(5.0)}
    >>> scores |= {"non-finite": torch.tensor(0), "shape-iou": torch.tensor(1.5), "shapes": torch.tensor(2)}
    >>> metrics = segmentation_metrics(scores)
    >>> metrics["accuracy"], metrics["class_accuracy"], metrics["mean_iou"], metrics["instance_iou"]
    (0.8, 0.875, 0.625, 0.75)
    """
    present = scores["confusion"].sum(dim=1) > 0
    return {
        **metrics_from(scores),
        "mean_iou": float(intersection_over_union(scores["confusion"])[present].mean()),
        "instance_iou": float(scores["shape-iou"] / scores["shapes"]),
    }
