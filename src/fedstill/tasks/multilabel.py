"""Classification of samples with any number of classes: a question with two answers for each class.

A model has an output for each class, its log-odds. The loss is the mean binary cross-entropy over samples and classes,
as torch's BCEWithLogitsLoss. Outputs are (samples, classes, 2): the log-probabilities that a sample has not, and has,
each class. Distillation compares them class by class.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedstill.core.dataset import Batch, Dataset, every_row, read_ahead
from fedstill.core.task import Output
from fedstill.models.classifier import log_sigmoid
from fedstill.models.model_outputs import ModelOutput, read_outputs
from fedstill.tasks.class_metrics import (
    ClassMetrics,
    ScoreSums,
    metrics_from_outcomes,
    metrics_from_sums,
    multilabel_metrics_from_scores,
    multilabel_sums_of_scores,
)
from fedstill.tasks.classification import BINS, LABELS, OUTPUTS, Classification, Weigh, weighted_nll
from fedstill.tasks.task_choice import tasks

if TYPE_CHECKING:
    from fedstill.models.portable.file_form import FileForm

_CERTAIN = -1e-37  # the largest log-probability, so that its log-odds are finite
_ONE_CLASS = "is for samples with one class, and these have several: leave it out"


@tasks.register("multilabel")
@dataclass(frozen=True)
class MultiLabel(Classification):
    """Which of the `classes` a sample has; labels are (samples, classes) of true and false."""

    sums_meaning: ClassVar[str] = "right and wrong answers on test data by class, and summed losses"
    refuses: ClassVar[Mapping[str, str]] = {
        name: f"training.{name} {_ONE_CLASS}" for name in ("loss", "local_update", "class_weights", "precision")
    }

    def forward(self, model: nn.Module, batch: Batch) -> Output:
        found = self._read(model, batch["inputs"].to(self.device))
        odds = log_odds(found)
        said = torch.stack([F.logsigmoid(-odds), F.logsigmoid(odds)], dim=2)
        terms: dict[str, Tensor] = {}
        if "labels" in batch:
            terms["cross-entropy"] = F.nll_loss(*self.labelled_rows(said, self.labels_of(batch)))
        return Output(said, found.features, terms, found.returned)

    def labels_of(self, batch: Batch) -> Tensor:
        return batch["labels"].to(self.device).long()

    def labelled_rows(self, outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        return outputs.flatten(0, 1), labels.flatten()

    def weighted(self, output: Output, batch: Batch, weigh: Weigh) -> dict[str, Tensor]:
        """As in classification, per sample and class."""
        if "labels" not in batch:
            return {}
        rows, labels = self.labelled_rows(output.log_probabilities, self.labels_of(batch))
        return {"cross-entropy": weighted_nll(rows, labels, weigh)}

    def score(self, models: Iterable[nn.Module], data: Dataset) -> Mapping[str, Tensor]:
        """Log-odds and labels of all samples and models, and sums of them."""
        size = len(self.classes)
        odds, labels = [torch.zeros(0, size)], [torch.zeros(0, size, dtype=torch.bool)]
        for model in models:
            model.eval()
            for rows in read_ahead(data, every_row(data)):
                batch = data.batch(rows)
                with torch.inference_mode():
                    said = self.forward(model, batch).log_probabilities.cpu()
                odds.append(said[:, :, 1] - said[:, :, 0])
                labels.append(batch["labels"])
        return {OUTPUTS: torch.cat(odds), LABELS: torch.cat(labels)}

    def sums(self, scores: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        if OUTPUTS not in scores:
            return scores
        odds, labels = scores[OUTPUTS], scores[LABELS]
        found = multilabel_sums_of_scores(odds, labels)
        broken = ~odds.isfinite().all(dim=1)
        each = F.binary_cross_entropy_with_logits(odds.double(), labels.double(), reduction="none")
        binned = {name: getattr(found, name) for name in ("calibration", "positives", "negatives")}
        return {
            "outcomes": found.outcomes,
            "exact": ((odds > 0) == labels).all(dim=1).sum(),
            "samples": torch.tensor(len(odds)),
            "loss": each.sum(),
            "non-finite": broken.sum(),
            **({f"{BINS}{name}": tensor for name, tensor in binned.items()} if self.counts_scores else {}),
        }

    def class_metrics(self, scores: Mapping[str, Tensor]) -> ClassMetrics:
        if OUTPUTS in scores:
            return multilabel_metrics_from_scores(scores[OUTPUTS], scores[LABELS])
        binned = {name.removeprefix(BINS): tensor for name, tensor in scores.items() if name.startswith(BINS)}
        if not binned:
            return metrics_from_outcomes(scores["outcomes"])
        return metrics_from_sums(ScoreSums(scores["outcomes"], **binned), several=True)

    def summarise(self, scores: Mapping[str, Tensor]) -> Mapping[str, float]:
        return multilabel_metrics(self.sums(scores))

    def scored(self, scores: Mapping[str, Tensor]) -> int:
        return int(self.sums(scores)["samples"])

    def on_mix(self, scores: Mapping[str, Tensor], counts: Tensor) -> float:
        return self.summarise(scores)["accuracy"]  # classes are not exclusive, so that there is no mix of them

    def file_form(self) -> FileForm:
        from fedstill.models.portable.file_form import classifier_form  # imported here: few runs are exported

        form = classifier_form(self.shape, signal=self.reads_signals)
        meaning = {next(iter(form.outputs)): "natural logarithms of the probability that a sample has each class"}
        return replace(form, task="multilabel", outputs={**form.outputs, **meaning}, write=_WithProbabilities)

    def predict(self, model: nn.Module, inputs: Tensor) -> Tensor:
        """The probability of each class, one row per input; they do not sum to 1."""
        model.eval()
        with torch.inference_mode():
            return self.forward(model, {"inputs": inputs}).log_probabilities[:, :, 1].exp().cpu()


class _WithProbabilities(nn.Module):
    """A model that returns the log-probability of each class, and features."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        found = read_outputs(self.model, inputs)
        known = found.log_probabilities if found.returned is None else log_sigmoid(found.returned.float())
        return known, found.features


def log_odds(found: ModelOutput) -> Tensor:
    """The log-odds of each class: what a model of the user's own returned, or from log-probabilities.

    >>> logits = torch.tensor([-60.0, -1.0, 0.0, 3.0, 60.0])
    >>> bool(torch.allclose(log_odds(ModelOutput(F.logsigmoid(logits), logits)), logits))
    True
    """
    if found.returned is not None:
        return found.returned.float()
    known = found.log_probabilities.clamp(max=_CERTAIN)
    return known - torch.log(-torch.expm1(known))


def multilabel_metrics(sums: Mapping[str, Tensor]) -> dict[str, float]:
    """Metrics from sums of scores.

    `accuracy` is the share of right answers over samples and classes, `class_accuracy` the mean over classes of the
    recall of both answers, `exact` the share of samples of which every answer is right.

    >>> sums = {"outcomes": torch.tensor([[3, 1], [1, 0], [0, 1], [4, 6]]), "exact": torch.tensor(6)}
    >>> sums |= {"samples": torch.tensor(8), "loss": torch.tensor(4.0), "non-finite": torch.tensor(0)}
    >>> found = multilabel_metrics(sums)
    >>> found["accuracy"], found["class_accuracy"], found["exact"], found["loss"]
    (0.875, 0.825, 0.75, 0.25)
    """
    hit, false, missed, rejected = sums["outcomes"].double()
    samples, answers = sums["samples"].double(), sums["outcomes"].sum().double()
    recalls = torch.stack([hit / (hit + missed), rejected / (rejected + false)])
    return {
        "accuracy": float((hit + rejected).sum() / answers),
        "class_accuracy": float(recalls.nanmean(dim=0).nanmean()),
        "exact": float(sums["exact"] / samples),
        "loss": float(sums["loss"] / answers),
        # The share of the more frequent answer, by class: 1 means that the model always gives the same answers.
        "constant": float(torch.maximum(hit + false, missed + rejected).sum() / answers),
        "non_finite": float(sums["non-finite"] / samples),
    }
