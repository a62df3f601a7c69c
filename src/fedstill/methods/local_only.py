"""Local-only training: what each client can do without a federation.

Every client starts from the same model and trains on its own data; no weights leave it. With `patience` it keeps a
share of its data apart and stops when it has not become better on that for so many epochs; the best model is kept.
Better is a higher accuracy, or as high a one with a lower loss: of a few samples, many epochs get as many right.
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
from fedstill.data.point_labels import shape_kinds
from fedstill.data.splits import split_validation
from fedstill.methods.base import MODEL, WORK_EGRESS, fresh_models, methods, train, work_expected, work_report


class LocalSettings(Settings):
    patience: int | None = Field(
        None, ge=1, description="stop after so many epochs without becoming better on the share held out; none: never"
    )
    hold_out: float = Field(0.1, gt=0, lt=1, description="share of a client's data that is held out for that")


@methods.register("local-only")
class LocalOnly(Method):
    """Every client trains alone; nothing but metrics leaves it."""

    name = "train"
    egress: Sequence[Egress] = WORK_EGRESS
    needs = frozenset({"labels"})
    personal = True
    Options: ClassVar[type[Settings]] = LocalSettings
    settings: LocalSettings

    def start(self, streams: Streams) -> Tensors:
        return fresh_models(self.task, streams, "start/")

    def request(self, state: Tensors, who: Profile, context: RoundContext) -> Message | None:
        first_contact = who.last_round is None
        return Message(under(MODEL, part(state, f"start/{who.architecture}/")) if first_contact else {})

    def reply(self, client: Client, request: Message, context: RoundContext) -> Message:
        own = part(client.state, MODEL) or request.part(MODEL)
        return Message(work_report(self.trained(client, own, context)))

    def trained(self, client: Client, start: Tensors, context: RoundContext) -> Trained:
        """Train from there on the client's own data; the model is then in the client's state."""
        model = client.task.build(client.profile.architecture, start)
        data, apart = self.held_out(client) if self.holds_out else (client.data, None)
        if self.settings.patience is None or apart is None:
            trained = train(client, model, self.training, context, data=data)
        else:
            best = Best(client, model, apart, self.settings.patience)
            trained = train(client, model, self.training, context, data=data, stop=best.stop)
            load_state(model, best.state)
        client.state = {**client.state, **under(MODEL, state_of(model))}
        return trained

    @property
    def holds_out(self) -> bool:
        return self.settings.patience is not None

    def held_out(self, client: Client) -> tuple[Dataset, Dataset]:
        """What a client trains on, and what it keeps apart: the same in every round, whatever the first one was.

        Drawn anew in each round, what is apart now would have been learnt before, and patience would praise memory.
        """
        streams = Streams(client.streams.seed).at("round", 0, self.name, "client", client.profile.id, "hold-out")
        rows, apart = split_validation(shape_kinds(client.data), self.settings.hold_out, streams, may_be_empty=True)
        return Subset(client.data, rows), Subset(client.data, apart)

    def expect(self, state: Tensors, who: Profile, request: Message) -> Mapping[str, tuple[Shape, torch.dtype]]:
        return work_expected(self.task.terms)

    def aggregate(self, state: Tensors, replies: Sequence[Reply], context: RoundContext) -> Tensors:
        return state

    def personalise(self, server: Tensors, state: Tensors) -> Tensors | None:
        return part(state, MODEL) or None


class Best:
    """The best model so far by accuracy on data apart, then by loss. Without such data, the last."""

    def __init__(self, client: Client, model: torch.nn.Module, apart: Dataset, patience: int) -> None:
        self.client, self.model, self.apart, self.patience = client, model, apart, patience
        self.found, self.waited = (-1.0, 0.0), 0
        self.state: Tensors = state_of(model)

    def stop(self) -> bool:
        """Asked after each epoch: whether none has been better for too long."""
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
