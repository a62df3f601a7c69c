"""Local-only training: the baseline without federation, in which each client trains alone.

Every client starts from the same model and trains on its own data; no weights leave it. With `patience` it holds out a
fraction of its data, stops after that many epochs without improvement on it, and keeps the best model. An improvement
is a higher accuracy, or an equal accuracy with a lower loss: on few samples many epochs have the same accuracy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from pydantic import Field

from fedstill.core.dataset import Dataset, Subset
from fedstill.core.egress import Egress
from fedstill.core.fit import Trained
from fedstill.core.kinds import load_state, state_of
from fedstill.core.message import Message, part, under
from fedstill.core.protocols import Client, Method, Profile, Reply, RoundContext, Shape
from fedstill.core.settings import Settings
from fedstill.core.streams import Streams
from fedstill.core.task import Tensors
from fedstill.core.training import Training
from fedstill.data.point_labels import shape_kinds
from fedstill.data.splits import split_validation
from fedstill.methods.base import MODEL, WORK_EGRESS, fresh_models, methods, train, work_expected, work_report

TRAIN = "train"  # the exchange in which clients train locally
START = "start/"  # start/ARCHITECTURE/...: prefix of the initial models in the server state


class LocalSettings(Settings):
    patience: int | None = Field(
        None,
        ge=1,
        description="patience: stop after this many epochs without improvement on held-out data; none: never",
    )
    hold_out: float = Field(
        0.1, gt=0, lt=1, description="fraction of a client's data that is held out for early stopping"
    )


@methods.register("local-only")
class LocalOnly(Method):
    """Local training without aggregation: each client trains on its own data and sends only metrics."""

    name = TRAIN
    egress: Sequence[Egress] = WORK_EGRESS
    needs = frozenset({"labels"})
    personal = True
    local_updates = True
    Options: ClassVar[type[Settings]] = LocalSettings
    settings: LocalSettings

    def refusal(self, setting: str) -> str | None:
        if setting == "local_update" and self.settings.patience is not None:
            return (
                "with patience a client stops between epochs, which a local update counts itself: leave method.patience"
                " out, and stop early in the update"
            )
        return super().refusal(setting)

    def start(self, streams: Streams) -> Tensors:
        return fresh_models(self.task, streams, START)

    def request(self, state: Tensors, who: Profile, context: RoundContext) -> Message | None:
        return first_model(state, who)

    def reply(self, client: Client, request: Message, context: RoundContext) -> Message:
        own = part(client.state, MODEL) or request.part(MODEL)
        holds_out = self.settings.patience is not None
        return Message(work_report(train_alone(client, own, self.settings, self.training, context, holds_out)))

    def expect(self, state: Tensors, who: Profile, request: Message) -> Mapping[str, tuple[Shape, torch.dtype]]:
        return work_expected(self.task.terms)

    def aggregate(self, state: Tensors, replies: Sequence[Reply], context: RoundContext) -> Tensors:
        return state

    def personalise(self, server: Tensors, state: Tensors) -> Tensors | None:
        return part(state, MODEL) or None


def first_model(state: Tensors, who: Profile) -> Message:
    """The initial model of a client, sent at first contact; later rounds continue from the client's own model."""
    return Message(under(MODEL, part(state, f"{START}{who.architecture}/")) if who.last_round is None else {})


def train_alone(
    client: Client,
    start: Tensors,
    settings: LocalSettings,
    training: Training,
    context: RoundContext,
    holds_out: bool,
) -> Trained:
    """Train the model on the client's own data and store it in the client's state."""
    model = client.task.build(client.profile.architecture, start)
    data, apart = held_out(client, settings.hold_out) if holds_out else (client.data, None)
    if settings.patience is None or apart is None:
        trained = train(client, model, training, context, data=data)
    else:
        best = Best(client, model, apart, settings.patience)
        trained = train(client, model, training, context, data=data, stop=best.stop)
        load_state(model, best.state)
    client.state = {**client.state, **under(MODEL, state_of(model))}
    return trained


def held_out(client: Client, share: float) -> tuple[Dataset, Dataset]:
    """A client's training and held-out data: the same split in every round.

    If it were drawn anew in each round, the model would be validated on samples that it was trained on before.
    """
    streams = Streams(client.streams.seed).at("round", 0, TRAIN, "client", client.profile.id, "hold-out")
    rows, apart = split_validation(shape_kinds(client.data), share, streams, may_be_empty=True)
    return Subset(client.data, rows), Subset(client.data, apart)


class Best:
    """The best model so far by accuracy on held-out data, then by loss; without held-out data, the last one."""

    def __init__(self, client: Client, model: torch.nn.Module, apart: Dataset, patience: int) -> None:
        self.client, self.model, self.apart, self.patience = client, model, apart, patience
        self.found, self.waited = (-1.0, 0.0), 0
        self.state: Tensors = state_of(model)

    def stop(self) -> bool:
        """Called after each epoch: whether `patience` epochs have passed without improvement."""
        found = (0.0, 0.0)
        if len(self.apart):
            scores = self.client.task.summarise(self.client.task.score([self.model], self.apart))
            found = (scores["accuracy"], -scores.get("loss", 0.0))
            self.client.meter.add(len(self.apart))
            self.model.train()
        self.waited += 1
        if found > self.found or not len(self.apart):
            self.found, self.waited, self.state = found, 0, state_of(self.model)
        return self.waited >= self.patience
