"""The one training loop. Every gradient step in the package is taken here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from fedstill.core.dataset import Batch, Dataset, read_ahead
from fedstill.core.kinds import norm_layers
from fedstill.core.optimisers import Optimiser
from fedstill.core.private_steps import PrivateSteps
from fedstill.core.protocols import Meter
from fedstill.core.streams import Streams
from fedstill.core.task import Output, Task

Terms = Mapping[str, Tensor]
Loss = Callable[[Output, Batch, Mapping[str, Tensor]], Terms]
Correct = Callable[[nn.Module], None]  # changes a gradient before the step


@dataclass
class Learner:
    """A model with its loss, optimiser and own streams.

    Several learners may share batches and one teacher pass; each then gets the bits it would get alone.
    """

    model: nn.Module
    loss: Loss
    optimiser: Optimiser
    streams: Streams
    correct: Correct | None = None
    freeze_statistics: bool = False  # True: BatchNorm layers normalise by their running statistics, and keep them
    private: PrivateSteps | None = None  # how single records are hidden; it then trains alone, and has no loss terms
    watch: Callable[[int], None] | None = None  # called with the number of steps after each one; may evaluate the model

    def set_mode(self) -> None:
        """Put the model into the mode that it trains in."""
        self.model.train()
        if self.freeze_statistics:
            for layer in norm_layers(self.model).values():
                layer.eval()


@dataclass(frozen=True)
class Trained:
    """What a learner did: steps really taken, and the mean of each loss term over them."""

    steps: int
    terms: Mapping[str, float]


def together(parts: Sequence[Trained]) -> Trained:
    """Several stretches of training as one.

    >>> together([Trained(1, {"loss": 4.0}), Trained(3, {"loss": 2.0})])
    Trained(steps=4, terms={'loss': 2.5})
    """
    if len(parts) == 1:
        return parts[0]
    steps = sum(part.steps for part in parts)
    names = dict.fromkeys(name for part in parts for name in part.terms)
    sums = {name: sum(part.terms.get(name, 0.0) * part.steps for part in parts) for name in names}
    return Trained(steps, {name: total / max(steps, 1) for name, total in sums.items()})


@dataclass(frozen=True)
class Schedule:
    """Which epochs to run, with what batches; or how many steps, wherever in an epoch they end."""

    epochs: range
    batch: int
    clip: float | None = None
    steps: int | None = None


def task_loss(output: Output, batch: Batch, shared: Mapping[str, Tensor]) -> Terms:
    """The task's own terms, unweighted."""
    return output.terms


def fit(
    learners: Sequence[Learner],
    task: Task,
    data: Dataset,
    schedule: Schedule,
    streams: Streams,
    meter: Meter,
    shared: Callable[[Batch], Mapping[str, Tensor]] | None = None,
    augment: Callable[[Batch, np.random.Generator], Batch] | None = None,
) -> list[Trained]:
    """Train all learners on the same batches; `shared` runs once per batch (a teacher, geometry).

    An epoch's order, augmentation and dropout depend on its number alone, so that training can stop at an epoch's
    end and go on to the same bits.
    """
    if learners[0].private is not None:
        return [_fit_privately(learners[0], learners[0].private, task, data, schedule, streams, meter, shared, augment)]
    task = task.trained_on(data)
    tallies = [_Tally() for _ in learners]
    outside = torch.default_generator.get_state()
    try:
        for learner in learners:
            learner.set_mode()
        for epoch in schedule.epochs:
            if tallies[0].steps == schedule.steps:
                break
            ambient = _Ambient(learner.streams.torch_state("dropout", epoch) for learner in learners)
            changes = None if augment is None else streams.draw("augment", epoch)
            order = shuffled(len(data), schedule.batch, streams.draw("order", epoch))
            for number, rows in enumerate(read_ahead(data, order)):
                if tallies[0].steps == schedule.steps:
                    break
                batch = data.batch(rows)
                if augment is not None and changes is not None:
                    batch = augment(batch, changes)
                extra: Mapping[str, Tensor] = {}
                if shared is not None:
                    with streams.ambient("shared", epoch, number):  # must not draw from the learners' streams
                        extra = shared(batch)
                for index, learner in enumerate(learners):
                    ambient.switch_to(index)
                    if (terms := _step(learner, task, batch, extra, schedule.clip)) is not None:
                        tallies[index].add(terms)
                        if learner.watch is not None:
                            learner.watch(tallies[index].steps)
                            learner.set_mode()
                meter.add(len(rows) * len(learners), len(rows) * len(learners))
            for learner in learners:
                learner.optimiser.end_epoch()
    finally:
        torch.default_generator.set_state(outside)
    return [tally.result() for tally in tallies]


def _fit_privately(
    learner: Learner,
    private: PrivateSteps,
    task: Task,
    data: Dataset,
    schedule: Schedule,
    streams: Streams,
    meter: Meter,
    shared: Callable[[Batch], Mapping[str, Tensor]] | None,
    augment: Callable[[Batch, np.random.Generator], Batch] | None,
) -> Trained:
    """Train by private steps: each record is a batch of its own. What the losses were is not told to anybody."""
    parameters, steps, expected = learner.optimiser.parameters, 0, min(schedule.batch, len(data))

    def gradients(rows: Tensor, changes: np.random.Generator) -> Iterator[list[Tensor]]:
        for row in rows.split(1):
            batch = data.batch(row) if augment is None else augment(data.batch(row), changes)
            _differentiate(learner, task, batch, {} if shared is None else shared(batch))
            yield [torch.zeros_like(one) if one.grad is None else one.grad for one in parameters]

    learner.set_mode()
    for epoch in schedule.epochs:
        changes, normal = streams.draw("augment", epoch), private.normal(streams.at("noise", epoch))
        with learner.streams.ambient("dropout", epoch):
            for rows in private.sampled(len(data), schedule.batch, streams.at("order", epoch)):
                private.set_gradients(parameters, gradients(rows, changes), expected, normal)
                _move(learner, schedule.clip)
                meter.add(len(rows), len(rows))
                steps += 1
        learner.optimiser.end_epoch()
    return Trained(steps, {})


def _step(learner: Learner, task: Task, batch: Batch, extra: Mapping[str, Tensor], clip: float | None) -> Terms | None:
    """The loss terms of a step; None if it was skipped, since gradients in half precision had overflowed."""
    terms, scale = _differentiate(learner, task, batch, extra)
    if scale != 1.0 and not _unscale(learner.optimiser.parameters, scale):
        return None
    _move(learner, clip)
    return terms


def _differentiate(learner: Learner, task: Task, batch: Batch, extra: Mapping[str, Tensor]) -> tuple[Terms, float]:
    """The loss terms of a batch, whose gradients the parameters then have, and by what these are scaled."""
    learner.optimiser.zero_grad()
    output = task.forward(learner.model, batch)
    terms = learner.loss(output, batch, extra)
    total = next(iter(terms.values())) if len(terms) == 1 else torch.stack(list(terms.values())).sum()
    (total if output.loss_scale == 1.0 else total * output.loss_scale).backward()
    return terms, output.loss_scale


def _move(learner: Learner, clip: float | None) -> None:
    """Correct the gradients, and take the step."""
    if learner.correct is not None:
        learner.correct(learner.model)
    if clip is not None:
        nn.utils.clip_grad_norm_(learner.optimiser.parameters, clip)
    learner.optimiser.step()


def _unscale(parameters: Iterable[nn.Parameter], scale: float) -> bool:
    """Divide gradients by the scale of the loss; whether all of them are finite."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    torch._foreach_div_(gradients, scale)
    return all(bool(gradient.isfinite().all()) for gradient in gradients)


def shuffled(samples: int, size: int, order: np.random.Generator) -> Iterator[Tensor]:
    """A shuffled epoch; a batch of one sample has no variance for BatchNorm and is skipped."""
    rows = torch.from_numpy(order.permutation(samples))
    return (piece for piece in rows.split(size) if len(piece) > 1)


class _Ambient:
    """Torch's global generator, shared out between learners; a learner alone never pays for a switch."""

    def __init__(self, states: Iterable[Tensor]) -> None:
        self.states = list(states)
        self.current = 0
        torch.default_generator.set_state(self.states[0])

    def switch_to(self, index: int) -> None:
        if index != self.current:
            self.states[self.current] = torch.default_generator.get_state()
            torch.default_generator.set_state(self.states[index])
            self.current = index


class _Tally:
    """Running sums of loss terms, read once at the end so that no step waits for a number."""

    def __init__(self) -> None:
        self.steps = 0
        self.sums: dict[str, Tensor] = {}

    def add(self, terms: Terms) -> None:
        self.steps += 1
        for name, value in terms.items():
            value = value.detach()
            self.sums[name] = self.sums[name] + value if name in self.sums else value

    def result(self) -> Trained:
        return Trained(self.steps, {name: float(value) / self.steps for name, value in self.sums.items()})
