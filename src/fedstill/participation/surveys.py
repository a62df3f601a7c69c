"""Surveys: exchanges before client sampling that store their results in the fleet state, not in a server state.

Clients report statistics of inputs, class fractions, or the loss of the shared model, all declared like any other
output of a client. Statistics and fractions are sent once, optionally with noise added by the client. As with privacy,
noise from a named stream is reproducible and does not protect against anyone who knows the seed: a real site draws it
from the operating system (see `on_site`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import partial

import numpy as np
import torch
from torch import Tensor

from fedstill.core.dataset import Dataset, class_counts, every_row
from fedstill.core.egress import Egress
from fedstill.core.message import Message, under
from fedstill.core.noise import Normal, from_operating_system, named
from fedstill.core.protocols import Abstain, Client, Exchange, Profile, Reply, RoundContext, Shape
from fedstill.core.streams import Streams
from fedstill.core.task import Tensors

MODEL = "model/"
Source = Callable[[Streams], Normal]
blur: Source = partial(named, purpose="noise")  # the client's own stream: independent of other clients


class Measurement(Exchange):
    """An exchange in which clients measure statistics of their data, stored as rows of a fleet table."""

    min_replies = 0
    table: str  # in the fleet state; also the name of the row in a reply

    def __init__(self, width: int, noise: float) -> None:
        self.width, self.noise = width, noise
        self.source: Source = blur

    def on_site(self) -> Exchange:
        real = copy(self)
        real.source = from_operating_system
        return real

    @abstractmethod
    def measure(self, data: Dataset) -> Tensor:
        """The row, in double precision."""
        ...

    def declared(self, what: str) -> tuple[Egress, ...]:
        blurred = f", with noise of deviation {self.noise:g}" if self.noise else ""
        return (Egress(self.table, "statistics", what + blurred),)

    def when(self, line: Egress, rounds: int) -> str:
        return "once"

    def request(self, state: Tensors, who: Profile, context: RoundContext) -> Message | None:
        return Message({}) if who.samples else None

    def reply(self, client: Client, request: Message, context: RoundContext) -> Message:
        row = self.measure(client.data)
        if self.noise:
            row = row + self.noise * self.source(client.streams)(tuple(row.shape))
        return Message({self.table: row})

    def expect(self, state: Tensors, who: Profile, request: Message) -> Mapping[str, tuple[Shape, torch.dtype]]:
        return {self.table: ((self.width,), torch.float64)}

    def aggregate(self, state: Tensors, replies: Sequence[Reply], context: RoundContext) -> Tensors:
        rows = state[self.table].clone() if self.table in state else unknown(context.clients, self.width)
        for reply in replies:
            rows[reply.profile.id] = self.row(reply)
        return {**state, self.table: rows}

    def row(self, reply: Reply) -> Tensor:
        return reply.message[self.table]


class LabelMix(Measurement):
    """The class fractions of a client's labels; the fleet stores them as numbers of samples."""

    name = "labels"
    table = "labels"

    def __init__(self, classes: int, noise: float) -> None:
        super().__init__(classes, noise)
        self.egress = self.declared("the share of each class among the client's labels")

    def measure(self, data: Dataset) -> Tensor:
        return label_shares(data, self.width)

    def row(self, reply: Reply) -> Tensor:
        # Noise can make fractions negative, which no cohort could have.
        return reply.profile.samples * super().row(reply).clamp(min=0)


class SharedLoss(Exchange):
    """The loss of the shared model on a client's data; unknown for clients without an accepted reply."""

    name = "losses"
    egress = (Egress("loss", "metrics", "the mean loss of the shared model over the client's samples"),)
    min_replies = 0

    def __init__(self, models: Mapping[str, Tensors]) -> None:
        self.models = models

    def request(self, state: Tensors, who: Profile, context: RoundContext) -> Message | None:
        model = self.models.get(who.architecture)
        return Message(under(MODEL, model)) if model is not None and who.samples else None

    def reply(self, client: Client, request: Message, context: RoundContext) -> Message:
        if not len(client.data):
            raise Abstain("it has no samples")
        model = client.task.build(client.profile.architecture, request.part(MODEL))
        scores = client.task.summarise(client.task.score([model], client.data))
        client.meter.add(len(client.data))
        return Message({"loss": torch.tensor(scores["loss"], dtype=torch.float64)})

    def expect(self, state: Tensors, who: Profile, request: Message) -> Mapping[str, tuple[Shape, torch.dtype]]:
        return {"loss": ((), torch.float64)}

    def aggregate(self, state: Tensors, replies: Sequence[Reply], context: RoundContext) -> Tensors:
        losses = torch.full((context.clients,), torch.nan, dtype=torch.float64)
        for reply in replies:
            losses[reply.profile.id] = reply.message["loss"]
        return {**state, "loss": losses}


def unknown(clients: int, width: int) -> Tensor:
    """A table without known values."""
    return torch.full((clients, width), torch.nan, dtype=torch.float64)


def not_surveyed(fleet: Tensors, table: str, ids: np.ndarray) -> np.ndarray:
    """Which of these clients have no row in a table yet."""
    return ids[np.isnan(fleet[table].numpy()[ids]).any(axis=1)] if table in fleet else ids


def label_shares(data: Dataset, classes: int) -> Tensor:
    """The fraction of each class, over samples or, if every point or box has a label, over those."""
    counts = class_counts(data, classes)
    if not counts.any():
        raise Abstain("it has no labels")
    return counts.double() / counts.sum()


def moments(data: Dataset) -> dict[str, Tensor]:
    """Mean, standard deviation and skewness over all input values of a data set, whatever their shape.

    Computed piecewise and combined by the formulas of Chan et al. (1979) for central moments: a sum of squares over
    millions of pixels would lose the digits that distinguish clients.
    """
    count, mean, square, cube = 0, *torch.zeros(3, dtype=torch.float64)
    for rows in every_row(data):
        piece = data.batch(rows)["inputs"].double().flatten()
        if not piece.numel():
            continue
        size, middle = piece.numel(), piece.mean()
        piece -= middle
        squares, cubes = piece.square().sum(), piece.pow(3).sum()
        both, apart = count + size, middle - mean
        cube = (
            cube
            + cubes
            + apart**3 * count * size * (count - size) / both**2
            + 3 * apart * (count * squares - size * square) / both
        )
        square = square + squares + apart**2 * count * size / both
        mean = mean + apart * size / both
        count = both
    if not count:
        raise Abstain("it has no samples")
    deviation = (square / count).sqrt()
    # Constant values have zero skewness.
    skewness = cube / count / deviation**3 if deviation > 0 else torch.zeros_like(cube)
    return {"mean": mean, "std": deviation, "skewness": skewness}
