"""Object detection: boxes around the objects in scenes, with average precision and recall."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from fedstill.core.dataset import Batch, Dataset, every_row
from fedstill.core.task import Output
from fedstill.detection.boxes import Tally, suppress, usable
from fedstill.detection.detection_losses import COUNTED, TERMS, Losses, combine, detection_losses
from fedstill.detection.model import Predictions
from fedstill.distillation.outputs import Found
from fedstill.tasks.classification import Classification, Weigh, mixed
from fedstill.tasks.task_choice import tasks

if TYPE_CHECKING:
    from fedstill.models.portable.file_form import FileForm

OVERLAP = 0.25  # IoU of two detections of a class above which the one with the lower score is removed
BITS = 12  # of scores, wherever detections are counted
_EVALUATION_BATCH = 16  # scenes
MEASURES = {"map_25": "mAP@0.25", "map_50": "mAP@0.5", "ar_25": "AR@0.25", "ar_50": "AR@0.5"}


@dataclass(frozen=True, kw_only=True)
class Detected(Found):
    """A detector's output on a batch; `logits` are its last layer's log-probabilities, "no object" last."""

    predictions: Predictions
    losses: Losses | None = None


@dataclass(frozen=True)
class Detections:
    """The detections in one scene, by descending score."""

    boxes: Tensor  # (n, 7)
    scores: Tensor  # (n,)
    classes: Tensor  # (n,)


@tasks.register("detection")
@dataclass(frozen=True)
class Detection(Classification):
    """Detection of objects of `classes` in scenes.

    Batches contain `labels` (scenes, most objects), -1 for padding, and `boxes` (scenes, most objects, 7).
    """

    finds_boxes: ClassVar[bool] = True
    measures: ClassVar[Mapping[str, str]] = MEASURES
    refuses: ClassVar[Mapping[str, str]] = {
        "loss": "a detector is trained on losses of classes, boxes and tokens together, not on logits and labels: leave"
        " training.loss out",
        "local_update": "a detector is trained on boxes beside labels, which a local update is not given: leave"
        " training.local_update out",
        "precision": "the losses of a detector are computed in single precision: leave training.precision out",
    }

    terms: tuple[str, ...] = TERMS
    headlines: tuple[str, ...] = ("accuracy", "class_accuracy", "map_25", "map_50", "ar_25", "ar_50", "loss")
    tally: Tally = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tally", Tally(len(self.classes), bits=BITS))

    def forward(self, model: nn.Module, batch: Batch) -> Detected:
        predictions: Predictions = model(batch["inputs"].to(self.device))
        losses = None
        if "labels" in batch:
            losses = detection_losses(predictions, batch["labels"].to(self.device), batch["boxes"].to(self.device))
        last = predictions.layers[-1]
        return Detected(
            last.log_probabilities,
            predictions.features,
            {} if losses is None else losses.terms(),
            predictions=predictions,
            boxes=last.boxes,
            queries=predictions.queries,
            losses=losses,
        )

    def weighted(self, output: Output, batch: Batch, weigh: Weigh) -> dict[str, Tensor]:
        """The loss terms with weights for matched objects, in each layer of the decoder for its own matches.

        `weigh` is called for each layer, the last one last. Queries without an object have weight 1, and so do tokens.
        """
        assert isinstance(output, Detected)
        return {} if output.losses is None else output.losses.terms(weigh)

    def score(self, models: Iterable[nn.Module], data: Dataset) -> Mapping[str, Tensor]:
        """Counts of detections and objects, sums of losses with their denominators, scenes with non-finite outputs."""
        scores = {
            **self.tally.empty(),
            "loss": torch.zeros(len(COUNTED), dtype=torch.float64),
            "loss-counts": torch.zeros(len(COUNTED), dtype=torch.float64),
            "scenes": torch.zeros((), dtype=torch.int64),
            "non-finite": torch.zeros((), dtype=torch.int64),
        }
        for model in models:
            model.eval()
            for rows in every_row(data, _EVALUATION_BATCH):
                batch = data.batch(rows)
                with torch.inference_mode():
                    output = self.forward(model, batch)
                assert output.losses is not None
                sums = output.losses.sums()
                scores["loss"] += torch.stack([sums[name] for name in COUNTED]).double().cpu()
                scores["loss-counts"] += (
                    torch.stack([output.losses.counts[by] for by in COUNTED.values()]).double().cpu()
                )
                scores["scenes"] += len(rows)
                scores["non-finite"] += (~_finite(output)).sum().cpu()
                for found, labels, boxes in zip(detections(output), batch["labels"], batch["boxes"], strict=True):
                    there = labels >= 0
                    self.tally.add(scores, found.boxes, found.scores, found.classes, boxes[there], labels[there])
        return scores

    def summarise(self, scores: Mapping[str, Tensor]) -> Mapping[str, float]:
        """Mean average precision and recall at two thresholds; `accuracy` is the mean average precision at 0.25."""
        counted = self.tally.metrics(scores)
        sums = dict(zip(COUNTED, scores["loss"], strict=True))
        counts = dict(zip(COUNTED.values(), scores["loss-counts"], strict=True))
        return {
            "accuracy": counted["map_25"],
            "class_accuracy": counted["map_25"],
            "map_25": counted["map_25"],
            "map_50": counted["map_50"],
            "ar_25": counted["recall_25"],
            "ar_50": counted["recall_50"],
            "loss": float(torch.stack(list(combine(sums, counts).values())).sum()),
            "constant": 0.0,
            "non_finite": float(scores["non-finite"] / scores["scenes"]),
        }

    def scored(self, scores: Mapping[str, Tensor]) -> int:
        return int(scores["scenes"])

    def on_mix(self, scores: Mapping[str, Tensor], counts: Tensor) -> float:
        precisions = self.tally.precisions(scores)[0]
        return mixed(precisions.nan_to_num(0.0), precisions.isfinite(), counts)

    def file_form(self) -> FileForm:
        from fedstill.detection.detector_file import detector_form  # imported here: few runs are exported

        return detector_form(self.shape, OVERLAP)

    def detect(
        self, model: nn.Module, inputs: Tensor, *, overlap: float = OVERLAP, least: float = 0.0
    ) -> list[Detections]:
        """Detections in each scene (scenes, points, 3), by descending score, after non-maximum suppression per class.

        Detections with a score below `least` are left out.
        """
        model.eval()
        found: list[Detections] = []
        for some in inputs.split(_EVALUATION_BATCH):
            with torch.inference_mode():
                found += detections(self.forward(model, {"inputs": some}), overlap, least)
        return found


def detections(output: Detected, overlap: float = OVERLAP, least: float = 0.0) -> list[Detections]:
    """The most likely class of each query other than "no object", with its probability as score."""
    scores, classes = output.log_probabilities[..., :-1].exp().max(dim=-1)
    every = []
    for boxes, sure, kinds in zip(output.boxes.cpu(), scores.cpu(), classes.cpu(), strict=True):
        fit = usable(boxes, sure) & (sure >= least)
        boxes, sure, kinds = boxes[fit], sure[fit], kinds[fit]
        kept = suppress(boxes, sure, kinds, overlap)
        every.append(Detections(boxes[kept], sure[kept], kinds[kept]))
    return every


def _finite(output: Detected) -> Tensor:
    """Which scenes have finite outputs only (scenes,)."""
    return output.log_probabilities.isfinite().flatten(1).all(dim=1) & output.boxes.isfinite().flatten(1).all(dim=1)
