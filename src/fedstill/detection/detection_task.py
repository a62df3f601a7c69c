"""Object detection: boxes around the objects in scenes, with average precision and recall.

Both protocols (`proposals.py`) are evaluated on the same predictions: the chosen one gives the main metrics, the other
one the same metrics with its name before theirs. Scores of detections are exact where all test scenes are in one place;
sites send histograms of them (`sums`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Self

import torch
from torch import Tensor, nn

from fedstill.core.dataset import Batch, Dataset, every_row
from fedstill.core.errors import InputError
from fedstill.core.message import part, under
from fedstill.core.sections import HasSections
from fedstill.core.task import Output
from fedstill.detection.boxes import (
    THRESHOLDS,
    Tally,
    average_precision,
    final_recall,
    judge_overlaps,
    measured,
    pairwise_iou,
    steps_by_class,
)
from fedstill.detection.detection_losses import COUNTED, TERMS, Losses, combine, detection_losses
from fedstill.detection.detection_section import MAIN, PROTOCOLS, ProtocolName, protocol_of
from fedstill.detection.model import Predictions
from fedstill.detection.proposals import OVERLAP, PROPOSE, Proposals, strict_above
from fedstill.distillation.outputs import Found
from fedstill.tasks.classification import Classification, Weigh, mixed
from fedstill.tasks.task_choice import tasks

if TYPE_CHECKING:
    from fedstill.models.portable.file_form import FileForm

BITS = 14  # of scores, where sites count detections
_EVALUATION_BATCH = 16  # scenes
_OBJECTS, _DETECTIONS = "objects", "detections"


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


@tasks.register("detection", behaviour=2)
@dataclass(frozen=True)
class Detection(Classification):
    """Detection of objects of `classes` in scenes.

    Batches contain `labels` (scenes, most objects), -1 for padding, and `boxes` (scenes, most objects, 7).
    """

    finds_boxes: ClassVar[bool] = True
    measures: ClassVar[Mapping[str, str]] = MAIN
    variants: ClassVar[tuple[str, ...]] = PROTOCOLS
    sums_meaning: ClassVar[str] = (
        "for each class of the test scenes the number of objects, and histograms of the scores of detections, all and"
        " right ones; summed losses"
    )
    refuses: ClassVar[Mapping[str, str]] = {
        "loss": "a detector is trained on losses of classes, boxes and tokens together, not on logits and labels: leave"
        " training.loss out",
        "local_update": "a detector is trained on boxes beside labels, which a local update is not given: leave"
        " training.local_update out",
        "precision": "the losses of a detector are computed in single precision: leave training.precision out",
        "class_weights": "a detector's loss weighs classes itself: leave training.class_weights out",
    }

    terms: tuple[str, ...] = TERMS
    protocol: ProtocolName = "published"
    headlines: tuple[str, ...] = field(init=False, repr=False, compare=False)
    tally: Tally = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        beside = [f"{self._other}_{name}" for name in MAIN]
        object.__setattr__(self, "headlines", ("accuracy", "class_accuracy", *MAIN, *beside, "loss"))
        object.__setattr__(self, "tally", Tally(len(self.classes), bits=BITS))

    @property
    def _other(self) -> ProtocolName:
        (other,) = (name for name in PROTOCOLS if name != self.protocol)
        return other

    def configured(self, experiment: HasSections) -> Self:
        return replace(self, protocol=protocol_of(experiment))

    def check_data(self, train: Dataset, test: Dataset, name: str) -> None:
        for split, data, why in (("training", train, "learned"), ("test", test, "measured")):
            labels = data.labels()
            if labels is not None and not (labels >= 0).any():
                raise InputError(
                    f"no {split} scene of {name} has a box, so nothing can be {why}: give scenes with boxes and labels"
                )

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
        """Judged detections, objects, sums of losses with their denominators, scenes with non-finite outputs."""
        scores = {
            _OBJECTS: torch.zeros(len(self.classes), dtype=torch.int64),
            "loss": torch.zeros(len(COUNTED), dtype=torch.float64),
            "loss-counts": torch.zeros(len(COUNTED), dtype=torch.float64),
            "scenes": torch.zeros((), dtype=torch.int64),
            "non-finite": torch.zeros((), dtype=torch.int64),
        }
        found: dict[ProtocolName, list[dict[str, Tensor]]] = {name: [_judged()] for name in PROTOCOLS}
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
                scores[_OBJECTS] += torch.bincount(batch["labels"][batch["labels"] >= 0], minlength=len(self.classes))
                for name, each in found.items():
                    each += _in_batch(name, output, batch)
        exact = {
            f"{name}/{part}": torch.cat([one[part] for one in each], dim=-1)
            for name, each in found.items()
            for part in each[0]
        }
        return scores | exact

    def sums(self, scores: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The same with a histogram in place of the detections of each protocol."""
        counted = {name: tensor for name, tensor in scores.items() if "/" not in name}
        for name in PROTOCOLS:
            own, counts = part(scores, f"{name}/"), self.tally.empty()
            self.tally.count(counts, own["scores"], own["classes"], own["right"])
            counted |= under(f"{name}/", {kind: tensor for kind, tensor in counts.items() if kind != _OBJECTS})
        return counted

    def summarise(self, scores: Mapping[str, Tensor]) -> Mapping[str, float]:
        """Mean average precision and recall at two thresholds; `accuracy` is the mean average precision at 0.25."""
        main, beside = self._means(scores, self.protocol), self._means(scores, self._other)
        sums = dict(zip(COUNTED, scores["loss"], strict=True))
        counts = dict(zip(COUNTED.values(), scores["loss-counts"], strict=True))
        return {
            "accuracy": main["map_25"],
            "class_accuracy": main["map_25"],
            **main,
            **{f"{self._other}_{name}": value for name, value in beside.items()},
            "loss": float(torch.stack(list(combine(sums, counts).values())).sum()),
            "constant": 0.0,
            "non_finite": float(scores["non-finite"] / scores["scenes"]),
        }

    def _means(self, scores: Mapping[str, Tensor], protocol: ProtocolName) -> dict[str, float]:
        """The means over the classes that have objects, by metric."""
        by_class = torch.cat(self._by_class(scores, protocol))
        return dict(zip(MAIN, by_class.nanmean(dim=1).tolist(), strict=True))

    def _by_class(self, scores: Mapping[str, Tensor], protocol: ProtocolName) -> tuple[Tensor, Tensor]:
        """Average precision and final recall, (thresholds, classes) each; of histograms, precision is estimated."""
        own = part(scores, f"{protocol}/") | {_OBJECTS: scores[_OBJECTS]}
        if _DETECTIONS in own:
            return self.tally.estimates(own), self.tally.recalls(own)
        table = steps_by_class(own["scores"], own["right"], own["classes"], own[_OBJECTS])
        return measured(table, average_precision), measured(table, final_recall)

    def scored(self, scores: Mapping[str, Tensor]) -> int:
        """The number of objects: precision and recall are defined for classes that have some."""
        return int(scores[_OBJECTS].sum())

    def on_mix(self, scores: Mapping[str, Tensor], counts: Tensor) -> float:
        precisions = self._by_class(scores, self.protocol)[0][0]
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
    found = [
        strict_above(said, boxes, overlap, least)
        for said, boxes in zip(output.log_probabilities.cpu(), output.boxes.cpu(), strict=True)
    ]
    return [Detections(one.boxes, one.scores, one.classes) for one in found]


def proposals(protocol: ProtocolName, output: Detected, points: Tensor) -> list[Proposals]:
    """What a protocol evaluates in each scene of a batch with these points (scenes, points, 3)."""
    said, boxes = output.log_probabilities.cpu(), output.boxes.cpu()
    return [PROPOSE[protocol](*scene) for scene in zip(said, boxes, points[..., :3].cpu(), strict=True)]


def _in_batch(protocol: ProtocolName, output: Detected, batch: Batch) -> list[dict[str, Tensor]]:
    """The judged detections in each scene of a batch."""
    found = proposals(protocol, output, batch["inputs"])
    return [_judged(*scene) for scene in zip(found, batch["labels"], batch["boxes"], strict=True)]


def _judged(
    found: Proposals | None = None, labels: Tensor | None = None, truth: Tensor | None = None
) -> dict[str, Tensor]:
    """Scores, classes and verdicts at each threshold of one scene's detections; without a scene, none."""
    if found is None or labels is None or truth is None:
        none = torch.zeros(0)
        return {
            "scores": none.double(),
            "classes": none.short(),
            "right": torch.zeros(len(THRESHOLDS), 0, dtype=torch.bool),
        }
    there = labels >= 0
    overlaps = pairwise_iou(found.boxes, truth[there].to(found.boxes))[found.rows]
    right = judge_overlaps(overlaps, found.scores, found.classes, labels[there])
    return {"scores": found.scores.double(), "classes": found.classes.short(), "right": right}


def _finite(output: Detected) -> Tensor:
    """Which scenes have finite outputs only (scenes,)."""
    return output.log_probabilities.isfinite().flatten(1).all(dim=1) & output.boxes.isfinite().flatten(1).all(dim=1)
