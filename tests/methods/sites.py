"""What tests of methods share: tasks small enough to work out by hand, and clients without an engine or a loop."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedstill.core.client import answer
from fedstill.core.dataset import ArrayDataset, Batch, Dataset, Proxy
from fedstill.core.kinds import load_state
from fedstill.core.message import Message
from fedstill.core.protocols import Client, Exchange, Failure, Method, Profile, Reply, RoundContext
from fedstill.core.streams import Streams
from fedstill.core.task import Output, Tensors
from fedstill.core.training import Training
from fedstill.distillation.distill import Teaching
from fedstill.distillation.labels_only import LabelsOnly
from fedstill.methods import methods
from fedstill.queries.query import Queries


class Point(nn.Module):
    """One weight, a float buffer that remembers the last mean of the data, and a counter of batches."""

    def __init__(self, start: float) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([float(start)]))
        self.register_buffer("mean", torch.zeros(1))
        self.register_buffer("batches", torch.tensor(0))

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            self.mean.copy_(inputs.mean(dim=0))
            self.batches.add_(1)
        return self.w - inputs


@dataclass(frozen=True)
class Quadratic:
    """A task whose loss is the mean of (w - a)^2 / 2 over the data a: its gradient is w - mean(a)."""

    start: float = 0.0
    architectures: tuple[str, ...] = ("point",)
    terms: tuple[str, ...] = ("half-square",)

    def make(self) -> nn.Module:
        return Point(self.start)

    def build(self, architecture: str, state: Tensors | None = None, streams: Streams | None = None) -> nn.Module:
        model = self.make()
        if state is not None:
            load_state(model, state)
        return model

    def trained_on(self, data: Dataset) -> Quadratic:
        return self

    def forward(self, model: nn.Module, batch: Batch) -> Output:
        away = model(batch["inputs"])
        return Output(away, away, {"half-square": 0.5 * away.square().mean()})

    def score(self, models: Iterable[nn.Module], data: Dataset) -> Mapping[str, Tensor]:
        raise NotImplementedError

    augments = False

    def augment(self, batch: Batch, generator: np.random.Generator) -> Batch:
        return batch

    def summarise(self, scores: Mapping[str, Tensor]) -> Mapping[str, float]:
        raise NotImplementedError


@dataclass
class Site:
    """Clients with data of their own, as an engine and the loop would run them."""

    method: Method
    task: object
    data: list[ArrayDataset]
    rounds: int = 1
    seed: int = 0
    same_streams: bool = False

    def __post_init__(self) -> None:
        self.states: list[Tensors] = [{} for _ in self.data]
        self.since: list[int | None] = [None for _ in self.data]
        self.server = self.method.start(Streams(self.seed))

    def profile(self, client: int) -> Profile:
        return Profile(client, len(self.data[client]), self.task.architectures[0], last_round=self.since[client])

    def context(self, round: int, exchange: str = "train") -> RoundContext:
        return RoundContext(
            round, self.rounds, len(self.data), exchange, Streams(self.seed).at("round", round, exchange)
        )

    def make(self, profile: Profile, state: Tensors, context: RoundContext) -> Client:
        name = 0 if self.same_streams else profile.id
        return Client(profile, self.task, self.data[profile.id], context.streams.at("client", name), state)

    def ask(self, client: int, round: int = 0, exchange: Exchange | None = None) -> Reply | Failure:
        exchange = exchange or self.method
        who, context = self.profile(client), self.context(round, exchange.name)
        request = exchange.request(self.server, who, context)
        return answer(self.make, exchange, who, request, self.states[client], context)

    def play_round(self, round: int = 0, cohort: Sequence[int] | None = None, lost: Sequence[int] = ()) -> Tensors:
        """One round among `cohort` (everybody, if it is left out); the uploads of those in `lost` never arrive."""
        asked = range(len(self.data)) if cohort is None else cohort
        for exchange in self.method.exchanges(self.server, round):
            replies = [self.ask(client, round, exchange) for client in asked]
            arrived = [reply for reply in replies if reply.profile.id not in lost]
            assert all(isinstance(reply, Reply) for reply in arrived), arrived
            self.server = exchange.aggregate(self.server, arrived, self.context(round, exchange.name))
            for reply in arrived:
                self.states[reply.profile.id] = reply.state
        for client in set(asked) - set(lost):
            self.since[client] = round
        return self.server

    def play(self) -> Tensors:
        for round in range(self.rounds):
            self.play_round(round)
        return self.server


def points(*values: float) -> ArrayDataset:
    return ArrayDataset(inputs=torch.tensor(values)[:, None])


def build(name: str, task: Any = None, training: Mapping[str, object] | None = None, **settings: object) -> Method:
    """A method by name, as a plan would make it; left to itself it takes one full-batch step of rate 1/2 a round."""
    usual = {"epochs": 1, "batch": 100, "rate": 0.5, "momentum": 0.0}
    kind = methods[name]
    method = kind(kind.Options(**settings), task or Quadratic(), Training(**{**usual, **(training or {})}))
    method.check()
    return method


def weight(server: Tensors, name: str = "model/parameters/w") -> float:
    return server[name].item()


def returned(server: Tensors, *states: Mapping[str, Tensor], samples: Sequence[int] | None = None) -> list[Reply]:
    """Replies of clients that send the server's model back with some tensors changed: a server's rule without training.

    Tensors are named by kind, without `model/`.
    """
    replies = []
    for client, changes in enumerate(states):
        model = {name: tensor for name, tensor in server.items() if name.startswith("model/")}
        model.update({"model/" + name: tensor for name, tensor in changes.items()})
        profile = Profile(client, samples[client] if samples else 1, "any")
        replies.append(Reply(profile, Message({**model, "steps": torch.tensor(1)}), {}))
    return replies


def bare(kind: type[Method], settings: Any = None, task: Any = None, training: Training | None = None) -> Method:
    """A method made by itself; inputs that it wants are there, and empty."""
    nothing = ArrayDataset(inputs=torch.zeros(1, 1, 8, 8).expand(20_000, 1, 8, 8))
    given = {
        "shared samples": Proxy(nothing, "ab" * 32),
        "teaching": Teaching(LabelsOnly()),
        "queries": Queries(),
    }
    own = settings if settings is not None else kind.Options()
    return kind(own, task, training or Training(), *([given] if kind.wants else []))
