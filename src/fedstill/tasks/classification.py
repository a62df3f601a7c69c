"""Classification of images and point clouds: loss, confusion-matrix metrics, prediction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Literal, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedstill.core.class_losses import class_weighted_nll
from fedstill.core.dataset import Batch, Dataset, class_counts, every_row, kept_batch, read_ahead
from fedstill.core.kinds import load_state, state_of
from fedstill.core.own_training import loss_on
from fedstill.core.sections import HasSections
from fedstill.core.streams import Streams
from fedstill.core.task import OWN_LOSS, Output, Tensors
from fedstill.core.training import FloatType
from fedstill.data.augmentation import Augmentation, NoAugmentation
from fedstill.models import build_model, models
from fedstill.models.model_outputs import ModelOutput, read_outputs
from fedstill.models.surgery import models_like
from fedstill.tasks.class_metrics import (
    ClassMetrics,
    ScoreSums,
    metrics_from_confusion,
    metrics_from_scores,
    metrics_from_sums,
    outcomes_of,
    sums_of_scores,
)

if TYPE_CHECKING:
    from fedstill.models.portable.file_form import FileForm

Weigh = Callable[[Tensor, Tensor], Tensor]
"""`(probability of the true class, label) -> weight`, (n,) each: how much every labelled thing counts in a loss."""

OUTPUTS, LABELS = "log-probabilities", "labels"  # of every scored sample: they stay where they were computed
BINS = "bins/"  # prefix of counts of scores
_BINNED = ("calibration", "positives", "negatives")
_TYPES: dict[FloatType, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}  # of autocast
_LOSS_SCALE = 1024.0  # with fp16: small gradients would be rounded to zero


class _Templates(dict[str, Callable[[Tensors], nn.Module]]):
    """By architecture, what makes models like a template: initialisation costs more than training a small client.

    Each task has its own templates, so that a new run sees the current version of a user-defined model; so has a copy
    of the task in another process.
    """

    def __reduce__(self) -> tuple[type[_Templates], tuple[()]]:
        return _Templates, ()


@dataclass(frozen=True)
class Classification:
    """Classification of inputs of `shape` into `classes`, for models that return log-probabilities and features."""

    finds_boxes: ClassVar[bool] = False  # True: models predict bounding boxes
    measures: ClassVar[Mapping[str, str]] = {}  # metrics beside accuracy with their titles; the first ranks rounds
    variants: ClassVar[tuple[str, ...]] = ()  # names before metrics that are measured in other ways, too
    sums_meaning: ClassVar[str] = "right and wrong answers on test data by class, and summed losses"
    refuses: ClassVar[Mapping[str, str]] = {}  # settings of training that do not go with it, each with why

    classes: tuple[str, ...]
    shape: tuple[int, ...]
    architectures: tuple[str, ...]
    device: str = "cpu"
    augmentation: Augmentation = field(default_factory=NoAugmentation)
    terms: tuple[str, ...] = ("cross-entropy",)
    headlines: tuple[str, ...] = ("accuracy", "class_accuracy", "loss")
    initial: Tensors = field(default_factory=dict, compare=False, repr=False)  # loaded into a new model
    own_loss: str | None = None  # the name of a loss that training uses in place of the cross-entropy
    precision: FloatType = "fp32"
    class_weights: Literal["balanced"] | tuple[float, ...] | None = None  # in the loss of training
    counts_scores: bool = False  # whether sites send counts of scores, for AUC and calibration
    _templates: _Templates = field(default_factory=_Templates, compare=False, repr=False)

    def configured(self, experiment: HasSections) -> Self:
        """The task with what the section of its slice sets in an experiment."""
        return self

    def check_data(self, train: Dataset, test: Dataset, name: str) -> None:
        """Refuse data on which nothing can be learned or measured."""

    def build(self, architecture: str, state: Tensors | None = None, streams: Streams | None = None) -> nn.Module:
        if state is None:
            model = self._initialised(architecture, streams or Streams(0))
            if self.initial:
                load_state(model, {**state_of(model), **self.initial})
            return model.to(self.device)
        if architecture not in self._templates:
            self._templates[architecture] = models_like(self._initialised(architecture, Streams(0)))
        model = self._templates[architecture](state)
        return model if self.device == "cpu" else model.to(self.device)

    def _initialised(self, architecture: str, streams: Streams) -> nn.Module:
        """A new model; initialisation uses torch's global generator, which is seeded from these streams."""
        with streams.ambient("initialise"):
            return build_model(architecture, self.shape, len(self.classes))

    @property
    def augments(self) -> bool:
        return not isinstance(self.augmentation, NoAugmentation)

    def augment(self, batch: Batch, generator: np.random.Generator) -> Batch:
        return self.augmentation(batch, generator)

    def forward(self, model: nn.Module, batch: Batch) -> Output:
        found = self._read(model, batch["inputs"].to(self.device))
        terms = self._terms(model, found, batch) if "labels" in batch else {}
        scale = _LOSS_SCALE if self.precision == "fp16" else 1.0
        weights = self._weights(found.log_probabilities) if model.training else None
        return Output(found.log_probabilities, found.features, terms, found.returned, weights, scale)

    def _read(self, model: nn.Module, inputs: Tensor) -> ModelOutput:
        """A model's outputs in single precision, whatever the precision in which they are computed."""
        if self.precision == "fp32":
            return read_outputs(model, inputs)
        with torch.autocast(self.device.partition(":")[0], dtype=_TYPES[self.precision]):
            found = read_outputs(model, inputs)
        if found.returned is None:  # normalised again, since exponentials of rounded log-probabilities do not sum to 1
            return ModelOutput(F.log_softmax(found.log_probabilities.float(), dim=-1), found.features.float())
        return ModelOutput(found.log_probabilities.float(), found.features.float(), found.returned.float())

    def _terms(self, model: nn.Module, found: ModelOutput, batch: Batch) -> dict[str, Tensor]:
        """The cross-entropy; or, in training, the user's own loss of what the model returned."""
        labels = self.labels_of(batch)
        if self.own_loss is None or not model.training:
            weight = self._weights(found.log_probabilities) if model.training else None
            return {"cross-entropy": class_weighted_nll(*self.labelled_rows(found.log_probabilities, labels), weight)}
        logits = found.log_probabilities if found.returned is None else found.returned
        return {OWN_LOSS: loss_on(self.own_loss, self.device)(*self.labelled_rows(logits, labels))}

    def trained_on(self, data: Dataset) -> Self:
        """With balanced class weights, those of this data."""
        if self.class_weights != "balanced" or data.labels() is None:
            return self
        return replace(self, class_weights=balanced_weights(class_counts(data, len(self.classes))))

    def _weights(self, like: Tensor) -> Tensor | None:
        return None if isinstance(self.class_weights, str | None) else like.new_tensor(self.class_weights)

    def labels_of(self, batch: Batch) -> Tensor:
        return batch["labels"].to(self.device)

    def labelled_rows(self, outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """One row of outputs for each label."""
        return outputs, labels

    def weighted(self, output: Output, batch: Batch, weigh: Weigh) -> dict[str, Tensor]:
        """The loss terms with each sample's loss multiplied by its weight from `weigh`; still divided by their number.

        Inputs and weights of `weigh` are detached. Weights of 1 give `forward`'s terms bit for bit; without labels
        there are no terms.
        """
        if "labels" not in batch:
            return {}
        return {
            "cross-entropy": weighted_nll(output.log_probabilities, self.labels_of(batch), weigh, output.class_weights)
        }

    def score(self, models: Iterable[nn.Module], data: Dataset) -> Mapping[str, Tensor]:
        """Confusion matrix (rows: truth), sums of loss and squared error, and non-finite outputs, over all models."""
        size = len(self.classes)
        confusion = torch.zeros(size, size, dtype=torch.int64)
        loss, squares = torch.zeros(2, dtype=torch.float64)
        broken = torch.zeros((), dtype=torch.int64)
        said, true = [torch.zeros(0, size)], [torch.zeros(0, dtype=torch.int64)]
        for model in models:
            model.eval()
            for rows in read_ahead(data, every_row(data)):
                batch = kept_batch(data, rows)
                with torch.inference_mode():
                    logits = self.forward(model, batch).log_probabilities.cpu()
                labels = batch["labels"]
                finite = logits.isfinite().all(dim=1)
                # Non-finite outputs are counted as class 0, so that every sample is in the matrix; their count is
                # reported separately.
                guesses = torch.where(finite, logits.argmax(dim=1), 0)
                confusion += torch.bincount(labels * size + guesses, minlength=size * size).view(size, size)
                loss += F.nll_loss(logits, labels, reduction="sum").double()
                squares += (logits.exp() - F.one_hot(labels, size)).square().sum().double()
                broken += (~finite).sum()
                said.append(logits)
                true.append(labels)
        return {
            "confusion": confusion,
            "loss": loss,
            "squared-error": squares,
            "non-finite": broken,
            OUTPUTS: torch.cat(said),
            LABELS: torch.cat(true),
        }

    def sums(self, scores: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        counted = {name: scores[name] for name in scores if name not in (OUTPUTS, LABELS)}
        if not self.counts_scores or OUTPUTS not in scores:
            return counted
        found = sums_of_scores(scores[OUTPUTS], scores[LABELS])
        return {**counted, **{f"{BINS}{name}": getattr(found, name) for name in _BINNED}}

    def class_metrics(self, scores: Mapping[str, Tensor]) -> ClassMetrics | None:
        """Metrics beside accuracy and loss, from scores or their sums; None for tasks without one class per sample."""
        if OUTPUTS in scores:
            return metrics_from_scores(scores[OUTPUTS], scores[LABELS])
        if f"{BINS}{_BINNED[0]}" not in scores:
            return metrics_from_confusion(scores["confusion"]) if "confusion" in scores else None
        binned = {name: scores[f"{BINS}{name}"] for name in _BINNED}
        return metrics_from_sums(ScoreSums(outcomes_of(scores["confusion"]), **binned))

    def summarise(self, scores: Mapping[str, Tensor]) -> Mapping[str, float]:
        return metrics_from(scores)

    def scored(self, scores: Mapping[str, Tensor]) -> int:
        return int(scores["confusion"].sum())

    def on_mix(self, scores: Mapping[str, Tensor], counts: Tensor) -> float:
        confusion = scores["confusion"]
        rows = confusion.sum(dim=1)
        return mixed(confusion.diagonal().double() / rows.clamp(min=1), rows > 0, counts)

    def file_form(self) -> FileForm:
        """What exported files of its models compute; raises an error if they cannot be exported."""
        from fedstill.models.portable.file_form import classifier_form  # imported here: few runs are exported

        return classifier_form(self.shape, signal=self.reads_signals)

    @property
    def reads_signals(self) -> bool:
        """Whether inputs with two axes are signals, not clouds, as the model's builder says."""
        first = self.architectures[0]
        return first in models and getattr(models[first], "kind", "") == "signal"

    def predict(self, model: nn.Module, inputs: Tensor) -> Tensor:
        """Class probabilities, one row per input."""
        model.eval()
        with torch.inference_mode():
            return self.forward(model, {"inputs": inputs}).log_probabilities.exp().cpu()


def balanced_weights(counts: Tensor) -> tuple[float, ...]:
    """Weights that are inverse to class counts, with mean 1 over the samples; absent classes weigh nothing.

    n / (k n_c) for n samples of k classes that are present, as in scikit-learn.

    >>> balanced_weights(torch.tensor([6, 2, 0]))
    (0.6666666666666666, 2.0, 0.0)
    """
    present = int((counts > 0).sum())
    total = int(counts.sum())
    return tuple(total / (present * count) if count else 0.0 for count in counts.tolist())


def weighted_nll(log_probabilities: Tensor, labels: Tensor, weigh: Weigh, by_class: Tensor | None = None) -> Tensor:
    """The mean of weight times negative log-likelihood over rows; with weights by class, their weighted mean.

    >>> certain = torch.tensor([[0.5, 0.5], [0.25, 0.75]]).log()
    >>> double = weighted_nll(certain, torch.tensor([0, 1]), lambda probability, label: 2.0 * label)
    >>> round(double.exp().item(), 4)  # 0 * ln 2 and 2 * ln(4/3), halved
    1.3333
    """
    with torch.no_grad():
        weights = weigh(log_probabilities.gather(1, labels.unsqueeze(1)).squeeze(1).exp(), labels)
    # Computed through torch's own loss, to keep its order of summation.
    return class_weighted_nll(log_probabilities * weights.unsqueeze(1), labels, by_class)


def mixed(by_class: Tensor, known: Tensor, counts: Tensor) -> float:
    """A per-class metric averaged with the weights `counts`; NaN if no class has a value.

    >>> mixed(torch.tensor([1.0, 0.5, 0.0]), torch.tensor([True, True, False]), torch.tensor([2, 6, 8]))
    0.625
    """
    weights = counts.double() / counts.sum().clamp(min=1) * known
    return float((by_class * weights).sum() / weights.sum()) if weights.sum() > 0 else float(torch.nan)


def metrics_from(scores: Mapping[str, Tensor]) -> dict[str, float]:
    """Instance accuracy, class accuracy (mean recall of the classes present) and losses, from summed scores.

    >>> confusion = torch.tensor([[8, 0, 0], [1, 1, 0], [0, 0, 0]])
    >>> scores = {"confusion": confusion, "loss": torch.tensor(5.0), "non-finite": torch.tensor(0)}
    >>> metrics_from(scores)
    {'accuracy': 0.9, 'class_accuracy': 0.75, 'loss': 0.5, 'constant': 0.9, 'non_finite': 0.0}
    >>> metrics_from({**scores, "squared-error": torch.tensor(15.0)})["mse"]  # of ten samples, and three classes each
    0.5
    """
    confusion = scores["confusion"].double()
    total = confusion.sum()
    rows = confusion.sum(dim=1)
    present = rows > 0
    return {
        "accuracy": float(confusion.trace() / total),
        "class_accuracy": float((confusion.diagonal()[present] / rows[present]).mean()),
        "loss": float(scores["loss"] / total),
        **({"mse": float(scores["squared-error"] / total) / len(confusion)} if "squared-error" in scores else {}),
        # The fraction of the most predicted class: 1 means that the model always predicts the same class.
        "constant": float(confusion.sum(dim=0).max() / total),
        "non_finite": float(scores["non-finite"] / total),
    }
