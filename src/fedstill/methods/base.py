"""Helpers shared by methods that exchange models: declared outputs, local training and the expected form of replies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from fedstill.core.dataset import Batch, Dataset
from fedstill.core.egress import Egress
from fedstill.core.fit import Correct, Learner, Loss, Schedule, Trained, fit, task_loss, together
from fedstill.core.kinds import PARAMETERS, state_of
from fedstill.core.local_updates import update_locally
from fedstill.core.message import part, under
from fedstill.core.numbers import count
from fedstill.core.protocols import Abstain, Client, Method, RoundContext, Shape
from fedstill.core.registry import Registry
from fedstill.core.streams import Streams
from fedstill.core.task import Task, Tensors
from fedstill.core.training import Training

methods: Registry[type[Method]] = Registry("method")

MODEL = "model/"  # prefix of a model's tensors in messages and in the server state
WEIGHTS = MODEL + PARAMETERS
Precision = Literal["half", "full"]  # of values that are sent per sample
PRECISIONS: dict[Precision, torch.dtype] = {"half": torch.float16, "full": torch.float32}
LOGITS = "logits"  # name of the logits on shared samples in a reply

MODEL_EGRESS = (
    Egress("model/parameters/*", "parameters", "the weights of the locally trained model"),
    Egress("model/buffers/*", "statistics", "BatchNorm's running means and variances over the client's data"),
    Egress("model/counters/*", "metrics", "how many batches BatchNorm has seen"),
)
WORK_EGRESS = (
    Egress("steps", "metrics", "how many optimiser steps the client took"),
    Egress("loss/*", "metrics", "the mean of each loss term over those steps"),
)


def train(
    client: Client,
    model: nn.Module,
    training: Training,
    context: RoundContext,
    loss: Loss = task_loss,
    *,
    correct: Correct | None = None,
    shared: Callable[[Batch], Mapping[str, Tensor]] | None = None,
    streams: Streams | None = None,
    moments: str = "optimiser/",
    data: Dataset | None = None,
    stop: Callable[[], bool] | None = None,
) -> Trained:
    """Train one model locally; a client that cannot take a single step abstains.

    `correct` changes the gradient before each step. `streams` and `moments` separate a second model of the same client
    from the first. `data` replaces the client's own data. `stop` is called after every epoch and ends training if it
    returns True.
    """
    streams, data = streams or client.streams, data or client.data
    if training.local_update is not None:
        if loss is not task_loss or any(one is not None for one in (correct, shared, stop)):
            raise TypeError("this method changes the steps of local training, which a local update takes itself")
        return _took_steps(update_locally(client, model, training, context, data, streams), data)
    optimiser = training.optimiser_of(model)
    if training.keep_optimiser:
        optimiser.load(part(client.state, moments))
    training.begin(optimiser, context.round, context.rounds, len(data))
    learner = Learner(model, loss, optimiser, streams, correct, private=client.private)
    every = range(training.epochs)
    parts = [every] if stop is None else [range(epoch, epoch + 1) for epoch in every]
    done: list[Trained] = []
    for epochs in parts:
        schedule = Schedule(epochs, training.batch, training.clip)
        done += fit(
            [learner],
            client.task,
            data,
            schedule,
            streams,
            client.meter,
            shared=shared,
            augment=client.task.augment if client.task.augments else None,
        )
        if stop is not None and stop():
            break
    trained = _took_steps(together(done), data)
    if training.keep_optimiser:
        client.state = {**client.state, **under(moments, optimiser.moments())}
    return trained


def _took_steps(trained: Trained, data: Dataset) -> Trained:
    """What was trained, if it was at all."""
    if trained.steps == 0 and len(data) > 1:
        raise Abstain("no step: no batch was used, or every gradient had overflowed")
    if trained.steps == 0:
        raise Abstain(f"no step: no batch of at least two in {count(len(data), 'sample')}")
    return trained


def fresh_models(task: Task, streams: Streams, place: str) -> dict[str, Tensor]:
    """A new model of each architecture, under the prefix `place` and the architecture's name."""
    models: dict[str, Tensor] = {}
    for name in task.architectures:
        models |= under(f"{place}{name}/", state_of(task.build(name, streams=streams.at("model", name))))
    return models


def work_report(trained: Trained, terms: Iterable[str] = ()) -> dict[str, Tensor]:
    """The metrics included in every reply; a loss term that this client did not use is zero."""
    means = {**dict.fromkeys(terms, 0.0), **trained.terms}
    losses = {f"loss/{name}": torch.tensor(value, dtype=torch.float64) for name, value in means.items()}
    return {"steps": torch.tensor(trained.steps), **losses}


def work_expected(terms: Iterable[str]) -> dict[str, tuple[Shape, torch.dtype]]:
    """The expected shapes and types of the metrics that `work_report` sends."""
    return {"steps": ((), torch.int64), **{f"loss/{name}": ((), torch.float64) for name in terms}}


def same_as(tensors: Mapping[str, Tensor]) -> dict[str, tuple[Shape, torch.dtype]]:
    """Expect tensors with the same names, shapes and types as these."""
    return {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}


def zeros_like(tensors: Tensors) -> dict[str, Tensor]:
    """Zero tensors, the initial value of sums and moments."""
    return {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
