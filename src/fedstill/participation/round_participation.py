"""Participation in a round: sampling, dropout, replacement, batteries and clusters combined.

`Participants` are the parts; a `ParticipationRound` covers one round and is discarded with it. Anything that outlives
the round is fleet state. A round that is interrupted restarts from the fleet state it began with, so nothing is charged
twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch

from fedstill.core.errors import InputError
from fedstill.core.participation_protocols import DropoutEvent, Survey
from fedstill.core.protocols import Exchange, Profile, RoundContext
from fedstill.core.streams import Streams
from fedstill.core.task import Tensors
from fedstill.participation.dropout import Dropout, NoDropout
from fedstill.participation.extensions import ClusterModel, Devices, RoundBill
from fedstill.participation.policies import Everyone, Policy
from fedstill.participation.replacement import choose_replacements

TRAINED = 3.0  # cost of training on a sample in forward passes: one forward, and a backward of twice its cost
_WANTED = {
    "fleet": "devices with batteries and links, and there is no fleet: set fleet={}",
    "clusters": "clusters, and there are none: set clusters={}",
    "labels": "labels, and this data has none",
    "shared-model": "a model that all share for losses=poll, and this method has none",
}


@dataclass(frozen=True)
class Participants:
    """The parts that determine who takes part, and the cost."""

    policy: Policy = field(default_factory=Everyone)
    dropout: Dropout = field(default_factory=NoDropout)
    fleet: Devices | None = None
    clusters: ClusterModel | None = None
    classes: int = 0
    costs: Mapping[str, float] = field(default_factory=dict)  # FLOPs per forward pass, by architecture
    epochs: int = 1

    def check(self, clients: int, given: Iterable[str]) -> None:
        """Refuse settings that cannot work with this number of clients; `given` is what data and method provide."""
        self.dropout.check(clients)
        present = {*given}
        if self.fleet is not None:
            present.add("fleet")
        if self.clusters is not None:
            self.clusters.check(clients)
            present.add("clusters")
        for name, part in (("participation", self.policy), ("clusters", self.clusters)):
            if part is not None and (missing := sorted(part.needs - present)):
                raise InputError(f"{name} needs {_WANTED[missing[0]]}")

    def exchanges(self, models: Mapping[str, Tensors] | None = None) -> list[Exchange]:
        """Exchanges beside the method's own, for manifests and for sites."""
        clusters = [] if self.clusters is None else [self.clusters.exchange(self.classes)]
        return [*clusters, *self.policy.exchanges(self.classes, models or {})]

    def start(self, profiles: Sequence[Profile], streams: Streams) -> Tensors:
        clients = len(profiles)
        fleet = {**self.policy.start(profiles, streams), **self.dropout.start(clients, streams)}
        if self.fleet is not None:
            fleet |= self.fleet.start(clients, streams)
        if self.clusters is not None:
            fleet |= self.clusters.start(clients, self.classes)
        return fleet

    def begin_round(self, fleet: Tensors, profiles: Sequence[Profile], context: RoundContext) -> ParticipationRound:
        return ParticipationRound(self, fleet, profiles, context)


class ParticipationRound:
    """One round of participation."""

    def __init__(
        self, participants: Participants, fleet: Tensors, profiles: Sequence[Profile], context: RoundContext
    ) -> None:
        self.participants, self.fleet, self.profiles, self.context = participants, fleet, profiles, context
        self.sampled: set[int] = set()  # including replacements and those that dropped out before the request
        self.replaced: dict[int, int] = {}  # replacement client by failed client

    @cached_property
    def bill(self) -> RoundBill | None:
        """Created when first needed, after surveys have extended the fleet state."""
        devices = self.participants.fleet
        return None if devices is None else devices.bill(self.fleet, self.participants.costs)

    @cached_property
    def reached(self) -> np.ndarray:
        return self.participants.policy.available(len(self.profiles), self.context)

    def surveys(self, models: Mapping[str, Tensors]) -> Iterable[Survey]:
        participants = self.participants
        there = participants.dropout.present(self.fleet, self.reached, self.context)
        if participants.clusters is not None:
            survey = participants.clusters.survey(self.fleet, there, participants.classes, self.context)
            if survey is not None:
                yield survey
        there = participants.policy.eligible(self.now(), there)
        survey = participants.policy.survey(self.fleet, there, models, participants.classes, self.context)
        if survey is not None:
            yield survey

    def eligible(self) -> np.ndarray:
        return self.participants.policy.eligible(self.now(), self.reached)

    def cohort(self) -> Sequence[int]:
        chosen = self.participants.policy.choose(self.eligible(), self.now(), len(self.profiles), self.context)
        self.sampled |= {int(client) for client in chosen}
        return sorted(self.sampled)

    def dropout_events(self, clients: Sequence[int], replacing: bool = False) -> Mapping[int, DropoutEvent]:
        dropout = self.participants.dropout
        if replacing and not dropout.replacements_can_drop:
            return {}
        return dropout.dropout_events(self.fleet, clients, self.context)

    def expected_work(self, who: Profile) -> float:
        return TRAINED * who.samples * self.participants.epochs

    def charge(self, who: Profile, down: int, work: float, up: int) -> str | None:
        return None if self.bill is None else self.bill.charge(who, down, work, up)

    def battery_empty(self, client: int) -> bool:
        return self.bill is not None and self.bill.empty(client)

    def replacements(self, failed: Sequence[int]) -> Mapping[int, int]:
        participants = self.participants
        missing = [client for client in failed if client not in self.replaced]
        if not participants.dropout.replace or not missing:
            return {}
        able = participants.dropout.can_replace(self.fleet, self.eligible(), self.context)
        if participants.fleet is not None:
            able = able[self.now()["charge"].numpy()[able] > 0]
        weights = participants.policy.weights(self.now(), able)
        found = choose_replacements(missing, able, self.fleet, weights, self.context, sampled=self.sampled)
        self.replaced |= found
        self.sampled |= set(found.values())
        return found

    def now(self) -> Tensors:
        """The fleet state with the charges that remain now."""
        return self.fleet if self.bill is None else {**self.fleet, **self.bill.now()}

    def end(self, finished: Iterable[int], losses: Mapping[int, float]) -> Tensors:
        fleet = dict(self.now())
        if "asked" in fleet:  # the name in checkpoints for the number of rounds in which a client was sampled
            fleet["asked"], fleet["finished"] = fleet["asked"].clone(), fleet["finished"].clone()
            fleet["asked"][sorted(self.sampled)] += 1
            fleet["finished"][list(finished)] += 1
        if "loss" in fleet and losses:
            fleet["loss"] = fleet["loss"].clone()
            fleet["loss"][list(losses)] = torch.tensor(list(losses.values()), dtype=torch.float64)
        if self.bill is not None:
            fleet = dict(self.bill.end(fleet, self.sampled, self.context))
        self.after = self.participants.dropout.next(fleet, self.context)
        return self.after

    def record(self) -> Mapping[str, Any]:
        fields: dict[str, Any] = {}
        if self.participants.dropout.replace:
            fields["replacements"] = dict(sorted(self.replaced.items()))
        if self.bill is not None:
            fields["fleet"] = self.bill.record(self.after)
        return fields
