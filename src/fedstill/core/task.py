"""Tasks: classes, model factory, loss and metrics. A task holds no data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from torch import Tensor, nn

from fedstill.core.dataset import Batch, Dataset
from fedstill.core.streams import Streams

Tensors = Mapping[str, Tensor]
OWN_LOSS = "loss"  # the loss term of training with a loss or a local update of the user's own


@dataclass(frozen=True)
class Output:
    """A model's outputs for a batch; `terms` are the task's loss terms, empty without labels."""

    log_probabilities: Tensor
    features: Tensor
    terms: Mapping[str, Tensor] = field(default_factory=dict)
    returned: Tensor | None = None  # what the model returned, where that was not log-probabilities
    class_weights: Tensor | None = None  # in the loss of training, where classes do not weigh alike
    loss_scale: float = 1.0  # of a loss before the backward pass: in half precision small gradients are rounded to zero

    @property
    def logits(self) -> Tensor:
        """The outputs as the model returned them: for a loss of the user's own."""
        return self.log_probabilities if self.returned is None else self.returned


class PerClass(Protocol):
    """Metrics over classes, and of each class."""

    @property
    def overall(self) -> Mapping[str, float]: ...

    @property
    def by_class(self) -> Mapping[str, list[float | None]]: ...


class Task(Protocol):
    """Shared by server and clients; in a real deployment the server has this and no data."""

    @property
    def architectures(self) -> tuple[str, ...]:
        """Those in play."""
        ...

    @property
    def terms(self) -> tuple[str, ...]:
        """The names of its loss terms."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one input."""
        ...

    @property
    def finds_boxes(self) -> bool:
        """Whether its models say where objects are, not what a sample is."""
        ...

    @property
    def sums_meaning(self) -> str:
        """What `sums` says of a site's test data, for the manifest that its data officer reads."""
        ...

    @property
    def device(self) -> str:
        """Where its models are."""
        ...

    @property
    def headlines(self) -> tuple[str, ...]:
        """The metrics that are said of clients' own models, as means over clients; `accuracy` is among them."""
        ...

    @property
    def counts_scores(self) -> bool:
        """Whether its sums contain counts of scores, for AUC and calibration."""
        ...

    @property
    def augments(self) -> bool:
        """Whether training sees a sample differently each time."""
        ...

    def build(self, architecture: str, state: Tensors | None = None, streams: Streams | None = None) -> nn.Module:
        """A model from a state, or freshly initialised from named streams."""
        ...

    def augment(self, batch: Batch, generator: np.random.Generator) -> Batch:
        """The batch as training sees it; evaluation never comes through here."""
        ...

    def trained_on(self, data: Dataset) -> Task:
        """The task for training on this data, where its loss depends on the data."""
        ...

    def forward(self, model: nn.Module, batch: Batch) -> Output:
        """The only way a method calls a model."""
        ...

    def labels_of(self, batch: Batch) -> Tensor:
        """The labels that a model is trained on, on the task's device."""
        ...

    def score(self, models: Iterable[nn.Module], data: Dataset) -> Mapping[str, Tensor]:
        """What models score on the data; `sums` of the scores of several sites add up."""
        ...

    def sums(self, scores: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The scores as tensors whose shapes do not depend on the data, for sites to send."""
        ...

    def summarise(self, scores: Mapping[str, Tensor]) -> Mapping[str, float]:
        """Metrics from scores or their sums; `accuracy` (higher is better) is always among them."""
        ...

    def class_metrics(self, scores: Mapping[str, Tensor]) -> PerClass | None:
        """Metrics beside these over classes and of each; None for tasks without one class per sample."""
        ...

    def scored(self, scores: Mapping[str, Tensor]) -> int:
        """How many samples, or objects in them, those scores measure; 0: no metric can be computed."""
        ...

    def on_mix(self, scores: Mapping[str, Tensor], counts: Tensor) -> float:
        """The accuracy there would be on data with so many of each class."""
        ...
