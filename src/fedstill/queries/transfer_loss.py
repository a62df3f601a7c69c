"""Distillation of a class from peers' models, on data that does not contain it.

*Query-Based Knowledge Transfer for Heterogeneous Learning Environments*, Alballa et al., 2025,
https://arxiv.org/abs/2504.09205

    p_t          probabilities of teacher t on a sample; p_s: those of the student
    T_Q          teachers that know a queried class, by a rule on their outputs on noise (see `probe_rule.py`)
    M(c)         lambda where c is queried, 1 where it is local, 0 elsewhere
    loss         = CE(p_s, label) + alpha * sum over t in T_Q of  - sum over c of M(c) p_t(c) log p_s(c)

First the whole student is trained with this loss; then its head is reset and trained with it again on fixed features. M
is the same for all teachers, so a sample's loss needs only the sum of their probabilities, which is computed once per
phase if samples are not augmented.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedstill.core.dataset import ArrayDataset, Batch, Dataset, Told, every_row, without_answers
from fedstill.core.fit import Correct, Learner, Loss, Schedule, Terms, Trained, fit, task_loss, together
from fedstill.core.optimisers import Sgd
from fedstill.core.protocols import Meter
from fedstill.core.streams import Streams
from fedstill.core.task import Output, Task
from fedstill.core.training import Training
from fedstill.models.classifier import Classifier
from fedstill.queries.probe_rule import NoiseOutputs
from fedstill.queries.vote import mixture

TERMS = ("cross-entropy", "teachers")
Combine = Literal["sum", "mixture"]  # how the teachers' probabilities on a sample are combined
Watch = Callable[[str, int, nn.Module], None]  # a phase, how many of its epochs are done, and the model then


def probe(task: Task, model: nn.Module, streams: Streams, samples: int = 20, scale: float = 1.0) -> NoiseOutputs:
    """A model's outputs on noise: the mean probabilities estimate the class distribution it was trained on."""
    drawn = scale * streams.draw("probe").standard_normal((samples, *task.shape))
    noise = torch.from_numpy(drawn.astype("float32"))
    model.eval()
    with torch.inference_mode():
        outputs = task.forward(model, {"inputs": noise}).log_probabilities.cpu()
    return NoiseOutputs.of(outputs.clone())


def class_mask(classes: int, local: Iterable[int], query: Iterable[int], weight: float) -> Tensor:
    """The weight of each class in the teachers' outputs.

    >>> class_mask(4, local=(0, 1), query=(1, 2), weight=1.5)
    tensor([1.0000, 1.5000, 1.5000, 0.0000])
    """
    mask = torch.zeros(classes)
    mask[list(local)] = 1.0
    mask[list(query)] = weight
    return mask


def said_together(
    task: Task, teachers: Sequence[nn.Module], batch: Batch, temperature: float = 1.0, combine: Combine = "sum"
) -> Tensor:
    """The sum of the teachers' probabilities on a batch, or their mixture by confidence."""
    inputs = without_answers(batch)
    with torch.no_grad():
        said = [task.forward(model.eval(), inputs).log_probabilities / temperature for model in teachers]
        if combine == "mixture":
            return mixture(torch.stack(said).log_softmax(dim=2)).cpu()
        return torch.stack([one.softmax(dim=1) for one in said]).sum(dim=0).cpu()


def sum_of_words(
    task: Task, teachers: Sequence[nn.Module], data: Dataset, temperature: float = 1.0, combine: Combine = "sum"
) -> Tensor:
    """The same for all samples."""
    batches = (data.batch(rows) for rows in every_row(data))
    return torch.cat([said_together(task, teachers, batch, temperature, combine) for batch in batches])


def query_loss(mask: Tensor, alpha: float = 1.0, temperature: float = 1.0) -> Loss:
    """Cross-entropy with the labels, and masked with the teachers; `said` is the sum of their probabilities."""

    def loss(output: Output, batch: Batch, shared: Mapping[str, Tensor]) -> Terms:
        said = shared.get("said", batch.get("said"))
        assert said is not None
        words = F.log_softmax(output.log_probabilities / temperature, dim=1)
        targets = (mask * said).to(words.device)
        return {**output.terms, "teachers": -alpha * (targets * words).sum(dim=1).mean()}

    return loss


@dataclass(frozen=True)
class QueryLesson:
    """The inputs of one phase: data, teachers, loss and training settings."""

    task: Task
    teachers: Sequence[nn.Module]
    data: Dataset
    loss: Loss
    training: Training
    streams: Streams
    meter: Meter
    temperature: float = 1.0
    watch: Watch | None = None
    combine: Combine = "sum"

    def output_of(self, batch: Batch) -> Mapping[str, Tensor]:
        """The teachers' outputs on a batch, computed now."""
        self.meter.add(len(batch["sample_id"]) * len(self.teachers))
        return {"said": said_together(self.task, self.teachers, batch, self.temperature, self.combine)}

    def told(self, samples: Dataset) -> Told:
        """The samples, or their features, with the teachers' outputs computed once."""
        self.meter.add(len(self.data) * len(self.teachers))
        words = sum_of_words(self.task, self.teachers, self.data, self.temperature, self.combine)
        return Told(samples, words)

    def learner(self, model: nn.Module, correct: Correct | None = None) -> Learner:
        return Learner(model, self.loss, self.training.make_optimiser(model.parameters()), self.streams, correct)


def learn(model: nn.Module, lesson: QueryLesson) -> Trained:
    """The first phase: the whole model learns from labels and teachers."""
    task, learner = lesson.task, lesson.learner(model)
    if task.augments:
        return _epochs(learner, lesson, lesson.data, "features", lesson.watch, lesson.output_of, task.augment)
    return _epochs(learner, lesson, lesson.told(lesson.data), "features", lesson.watch, augment=task.augment)


def refine(model: Classifier, head: Mapping[str, Tensor], lesson: QueryLesson, frozen: float = 0.0) -> Trained:
    """The second phase: the reset head is trained on fixed features of unaugmented samples.

    A fraction `frozen` of its weights is fixed: those with the largest gradient on the client's own labels.
    """
    model.head.load_state_dict(dict(head))
    lesson.meter.add(len(lesson.data))
    told = lesson.told(features_of(lesson.task, model, lesson.data))
    students = ClassifierHead(model.head)
    if frozen:
        batch, streams = lesson.training.batch, lesson.streams.at("importance")
        students.hold(importance(students, lesson.task, told, batch, streams), frozen)
    watch = lesson.watch

    def whole(phase: str, epoch: int, module: nn.Module) -> None:
        students.settle()
        if watch is not None:
            watch(phase, epoch, model)

    learner = lesson.learner(students, students.still)
    trained = _epochs(learner, lesson, told, "head", None if watch is None else whole)
    students.settle()
    return trained


class ClassifierHead(nn.Module):
    """A classifier's head alone, on features; some of its weights can be fixed."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = head
        self.held: dict[str, tuple[Tensor, Tensor]] = {}  # by parameter: which entries are fixed, and their values

    def hold(self, importance: Mapping[str, Tensor], share: float) -> None:
        """Fix the most important fraction of all weights; ties go by position."""
        named = {name: parameter.detach() for name, parameter in self.named_parameters()}
        chosen = most_important({name: importance[name] for name in named}, share)
        self.held = {name: (chosen[name], parameter.clone()) for name, parameter in named.items()}

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        self.settle()
        return F.log_softmax(self.head(features), dim=1), features

    def still(self, module: nn.Module) -> None:
        """Zero the gradients of fixed weights, so that they do not contribute to a gradient's norm."""
        for name, (which, _) in self.held.items():
            gradient = self.get_parameter(name).grad
            if gradient is not None:
                gradient.masked_fill_(which, 0.0)

    def settle(self) -> None:
        """Restore the fixed weights: weight decay also moves weights without a gradient."""
        with torch.no_grad():
            for name, (which, values) in self.held.items():
                parameter = self.get_parameter(name)
                parameter.copy_(torch.where(which, values, parameter))


def features_of(task: Task, model: Classifier, data: Dataset) -> ArrayDataset:
    """The extractor's features of every sample, in evaluation mode, with labels and ids."""
    model.eval()
    columns: dict[str, list[Tensor]] = {}
    for rows in every_row(data):
        batch = data.batch(rows)
        with torch.no_grad():
            features = task.forward(model, batch).features.cpu()
        for name, column in {"inputs": features, "labels": batch["labels"], "sample_id": batch["sample_id"]}.items():
            columns.setdefault(name, []).append(column)
    return ArrayDataset(**{name: torch.cat(parts) for name, parts in columns.items()})


def most_important(importance: Mapping[str, Tensor], share: float) -> dict[str, Tensor]:
    """The entries that make up this fraction of all, the largest first; ties go by position.

    >>> most_important({"a": torch.tensor([3.0, 1.0]), "b": torch.tensor([[2.0, 2.0]])}, 0.5)
    {'a': tensor([ True, False]), 'b': tensor([[ True, False]])}
    """
    every = torch.cat([tensor.flatten() for tensor in importance.values()])
    chosen = torch.zeros_like(every, dtype=torch.bool)
    chosen[torch.argsort(every, descending=True, stable=True)[: round(share * len(every))]] = True
    parts = chosen.split([tensor.numel() for tensor in importance.values()])
    return {name: part.view_as(tensor) for (name, tensor), part in zip(importance.items(), parts, strict=True)}


def importance(model: nn.Module, task: Task, data: Dataset, batch: int, streams: Streams) -> dict[str, Tensor]:
    """The sum over batches of the squared gradient of the cross-entropy with the labels, for each weight.

    Computed on a copy: BatchNorm would otherwise update its statistics.
    """
    copy = deepcopy(model)
    sums = {name: torch.zeros_like(parameter) for name, parameter in copy.named_parameters()}

    def collect(module: nn.Module) -> None:
        for name, parameter in module.named_parameters():
            if parameter.grad is not None:
                sums[name] += parameter.grad.square()

    still = Learner(copy, task_loss, Sgd(copy.parameters(), rate=0.0), streams, collect)
    fit([still], task, data, Schedule(range(1), batch), streams, Meter())
    return sums


def _epochs(
    learner: Learner,
    lesson: QueryLesson,
    data: Dataset,
    phase: str,
    watch: Watch | None,
    shared: Callable[[Batch], Mapping[str, Tensor]] | None = None,
    augment: Callable[..., Batch] | None = None,
) -> Trained:
    """All epochs; one at a time with an observer, with the same results."""
    task, training, meter = lesson.task, lesson.training, lesson.meter
    every = range(training.epochs)
    parts = [every] if watch is None else [range(epoch, epoch + 1) for epoch in every]
    done: list[Trained] = []
    for epochs in parts:
        schedule = Schedule(epochs, training.batch, training.clip)
        done += fit([learner], task, data, schedule, learner.streams, meter, shared=shared, augment=augment)
        if watch is not None:
            watch(phase, epochs.stop, learner.model)
    return together(done)


class QueryObserver(Protocol):
    """An observer of a client that learns the classes it queried."""

    def epoch(self, phase: str, epochs: int, accuracy: float) -> None:
        """Called after this many epochs of a phase, with the client's current average accuracy."""
