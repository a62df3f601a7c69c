"""What tests of methods between peers share: tiny runs on digits, and what they left behind."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import fedstill
from fedstill.core.client import answer
from fedstill.core.message import Message, digest, part
from fedstill.core.protocols import Exchange, Failure, Reply, RoundContext
from fedstill.core.task import Tensors
from fedstill.runtime.assemble import make_experiment
from fedstill.runtime.checkpoint import candidates
from fedstill.runtime.client_store import ClientStore
from fedstill.runtime.plan import Simulation, make_plan

TINY: dict[str, Any] = {
    "data": "digits",
    "model": "mlp",
    "clients": 4,
    "rounds": 1,
    "partition": {"name": "pathological", "classes_per_client": 3},
    "training": {"epochs": 1, "batch": 64, "optimiser": "adam", "rate": 1e-3},
    "queries": {"under": 10},
    "seed": 7,
}
SHORT = {"transfer_epochs": 1}
MIXED = {"model": None, "models": {"cnn": 2, "mlp": 2}}


@dataclass(frozen=True)
class Ended:
    """A finished run, with everybody's state."""

    run: fedstill.Run
    server: Tensors
    states: list[Tensors]

    def models(self, place: str = "model/") -> list[str]:
        """A digest of what each client keeps there."""
        return [digest(part(state, place)) for state in self.states]

    def queries(self) -> list[list[int]]:
        return [torch.nonzero(state["query"]).flatten().tolist() for state in self.states]


def experiment(method: str, settings: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    return {**TINY, **changes, "method": {"name": method, **(settings or {})}}


def planned(method: str, settings: dict[str, Any] | None = None, **changes: Any) -> Simulation:
    return make_plan(make_experiment(experiment(method, settings, **changes)))


def played(out: Path, method: str, settings: dict[str, Any] | None = None, **changes: Any) -> Ended:
    run = fedstill.run(experiment(method, settings, **changes), out=out)
    return left(run)


def left(run: fedstill.Run) -> Ended:
    found, _ = candidates(run.path)
    clients = run.experiment.clients
    store = ClientStore.of(run.path, clients)
    return Ended(run, found[0].server, [store.load(client) for client in range(clients)])


@dataclass
class Table:
    """One round at a time, without a loop or an engine: exchanges by hand, on the clients of a plan."""

    plan: Simulation

    def __post_init__(self) -> None:
        self.server = self.plan.method.start(self.plan.streams)
        self.states: list[Tensors] = [{} for _ in self.plan.profiles]

    def context(self, exchange: Exchange, round: int = 0) -> RoundContext:
        streams = self.plan.streams.at("round", round, exchange.name)
        return RoundContext(round, self.plan.rounds, len(self.states), exchange.name, streams)

    def request(self, exchange: Exchange, client: int) -> Message | None:
        return exchange.request(self.server, self.plan.profiles[client], self.context(exchange))

    def dispatch(self, exchange: Exchange) -> list[Reply]:
        """Everybody who is asked replies; the server merges."""
        context = self.context(exchange)
        self.server = exchange.prepare(self.server, context)
        replies = []
        for who in self.plan.profiles:
            request = exchange.request(self.server, who, context)
            if request is not None:
                reply = answer(self.plan.clients, exchange, who, request, self.states[who.id], context)
                assert not isinstance(reply, Failure), reply.detail
                replies.append(reply)
                self.states[who.id] = reply.state or {}
        self.server = exchange.aggregate(self.server, replies, context)
        return replies
