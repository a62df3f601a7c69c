"""Local training of the user's own: a function that trains a model in place on the batches of one client."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from fedstill.core.dataset import Dataset
from fedstill.core.errors import InputError
from fedstill.core.fit import Trained, shuffled
from fedstill.core.global_generators import seeded_from
from fedstill.core.own_training import local_updates
from fedstill.core.protocols import Client, RoundContext
from fedstill.core.streams import Streams
from fedstill.core.task import OWN_LOSS
from fedstill.core.training import Training, batches_in


@dataclass(frozen=True)
class UpdateContext:
    """What a local update may want to know beside the model and the data."""

    round: int  # from 0
    rounds: int
    client: int
    rate: float  # `training.rate`, with the schedule and the warm-up of rounds
    epochs: int
    batch: int
    device: torch.device


class Loader:
    """The batches `(inputs, labels)` of a client, on its device; each iteration is the next epoch, in another order."""

    def __init__(self, client: Client, data: Dataset, batch: int, streams: Streams) -> None:
        self.client, self.data, self.batch, self.streams = client, data, batch, streams
        self.epochs = self.steps = 0

    def __len__(self) -> int:
        return batches_in(len(self.data), self.batch)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        epoch, task = self.epochs, self.client.task
        self.epochs += 1
        changes = self.streams.draw("augment", epoch)
        for rows in shuffled(len(self.data), self.batch, self.streams.draw("order", epoch)):
            batch = task.augment(self.data.batch(rows), changes)
            self.steps += 1
            self.client.meter.add(len(rows), len(rows))
            yield batch["inputs"].to(task.device), task.labels_of(batch)


def update_locally(
    client: Client, model: nn.Module, training: Training, context: RoundContext, data: Dataset, streams: Streams
) -> Trained:
    """Train a model by the user's local update; a step is a batch that the loader gave out."""
    assert training.local_update is not None
    loader = Loader(client, data, training.batch, streams)
    known = UpdateContext(
        context.round,
        context.rounds,
        client.profile.id,
        training.rate_in(context.round, context.rounds),
        training.epochs,
        training.batch,
        torch.device(client.task.device),
    )
    if not len(loader):
        return Trained(0, {})
    update = local_updates[training.local_update]
    model.train()
    with seeded_from(streams.at("local update")):
        returned = update(model, loader, known) if takes_context(update) else update(model, loader)
    return Trained(loader.steps, {OWN_LOSS: _loss(returned)})


def takes_context(update: Callable[..., Any]) -> bool:
    """Whether a local update is a function of three; refused unless it is one of two or three."""
    held = getattr(update, "held", update)
    for count in (3, 2):
        try:
            signature(held).bind(*range(count))
        except TypeError:
            continue
        return count == 3
    raise InputError(
        f"the local update {local_updates.name_of(update)} must be a function of (model, loader) or of (model, loader,"
        f" context), and is one of {signature(held)}"
    )


def _loss(returned: Any) -> float:
    """The mean loss that a local update returned; 0 if it returned none."""
    if isinstance(returned, Mapping):
        if strange := [name for name in returned if name != OWN_LOSS]:
            raise TypeError(f"a local update returns its mean loss, a number or {{'loss': number}}, not {strange[0]!r}")
        returned = returned.get(OWN_LOSS)
    return 0.0 if returned is None else float(returned)
