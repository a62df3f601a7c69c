"""Participation in an experiment, all parts together: sampling, dropout, replacement, batteries, clusters.

`Participants` are the parts; a `ParticipationRound` is one round of them and is thrown away with it. Whatever outlives
the round is fleet state. A round that is killed begins again from the fleet it began with, so nothing is paid twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch

from fedstill.core.errors import InputError
from fedstill.core.protocols import DropoutEvent, Exchange, Profile, RoundContext, Survey
from fedstill.core.streams import Streams
from fedstill.core.task import Tensors
from fedstill.participation.dropout import Dropout, NoDropout
from fedstill.participation.extensions import ClusterModel, Devices, RoundBill
from fedstill.participation.policies import Everyone, Policy
from fedstill.participation.replacement import replacements

TRAINED = 3.0  # forward passes that training on a sample costs: one, and twice as much backward
_WANTED = {
    "fleet": "devices with batteries and links, and there is no fleet: set fleet={}",
    "clusters": "clusters, and there are none: set clusters={}",
    "labels": "labels, and this data has none",
    "shared-model": "a model that all share for losses=poll, and this method has none",
}


@dataclass(frozen=True)
class Participants:
    """The parts that decide who takes part, and what it costs them."""

    policy: Policy = field(default_factory=Everyone)
    dropout: Dropout = field(default_factory=NoDropout)
    fleet: Devices | None = None
    clusters: ClusterModel | None = None
    classes: int = 0
    costs: Mapping[str, float] = field(default_factory=dict)  # floating-point operations of a pass, by architecture
    epochs: int = 1

    def check(self, clients: int, given: Iterable[str]) -> None:
        """Refuse what cannot work with so many clients; `given` is what data and method have of what can be needed."""
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
        """What may be asked beside the method's own exchanges, for manifests and for sites."""
        asked = [] if self.clusters is None else [self.clusters.exchange(self.classes)]
        return [*asked, *self.policy.exchanges(self.classes, models or {})]

    def start(self, profiles: Sequence[Profile], streams: Streams) -> Tensors:
        clients = len(profiles)
        fleet = {**self.policy.start(profiles, streams), **self.dropout.start(clients, streams)}
        if self.fleet is not None:
            fleet |= self.fleet.start(clients, streams)
        if self.clusters is not None:
            fleet |= self.clusters.start(clients, self.classes)
        return fleet

    def attend(self, fleet: Tensors, profiles: Sequence[Profile], context: RoundContext) -> ParticipationRound:
        return ParticipationRound(self, fleet, profiles, context)


class ParticipationRound:
    """The book of one round."""

    def __init__(
        self, participants: Participants, fleet: Tensors, profiles: Sequence[Profile], context: RoundContext
    ) -> None:
        self.participants, self.fleet, self.profiles, self.context = participants, fleet, profiles, context
        self.taken: set[int] = set()  # whoever was asked, or would have been
        self.stood_in: dict[int, int] = {}  # by whom they stand in for

    @cached_property
    def bill(self) -> RoundBill | None:
        """Opened when first needed: surveys have added to the fleet by then."""
        devices = self.participants.fleet
        return None if devices is None else devices.bill(self.fleet, self.participants.costs)

    @cached_property
    def reached(self) -> np.ndarray:
        return self.participants.policy.available(len(self.profiles), self.context)

    def surveys(self, models: Mapping[str, Tensors]) -> Iterable[Survey]:
        participants = self.participants
        there = participants.dropout.present(self.fleet, self.reached, self.context)
        if participants.clusters is not None:
            asked = participants.clusters.survey(self.fleet, there, participants.classes, self.context)
            if asked is not None:
                yield asked
        there = participants.policy.eligible(self.now(), there)
        asked = participants.policy.survey(self.fleet, there, models, participants.classes, self.context)
        if asked is not None:
            yield asked

    def eligible(self) -> np.ndarray:
        return self.participants.policy.eligible(self.now(), self.reached)

    def cohort(self) -> Sequence[int]:
        chosen = self.participants.policy.choose(self.eligible(), self.now(), len(self.profiles), self.context)
        self.taken |= {int(client) for client in chosen}
        return sorted(self.taken)

    def fates(self, clients: Sequence[int], standing_in: bool = False) -> Mapping[int, DropoutEvent]:
        dropout = self.participants.dropout
        if standing_in and not dropout.replacements_can_drop:
            return {}
        return dropout.fates(self.fleet, clients, self.context)

    def predicted(self, who: Profile) -> float:
        return TRAINED * who.samples * self.participants.epochs

    def charge(self, who: Profile, down: int, work: float, up: int) -> str | None:
        return None if self.bill is None else self.bill.charge(who, down, work, up)

    def flat(self, client: int) -> bool:
        return self.bill is not None and self.bill.empty(client)

    def stand_ins(self, lost: Sequence[int]) -> Mapping[int, int]:
        participants = self.participants
        missing = [client for client in lost if client not in self.stood_in]
        if not participants.dropout.replace or not missing:
            return {}
        able = participants.dropout.able(self.fleet, self.eligible(), self.context)
        if participants.fleet is not None:
            able = able[self.now()["charge"].numpy()[able] > 0]
        found = replacements(
            missing, able, self.fleet, participants.policy.weights(self.now(), able), self.context, asked=self.taken
        )
        self.stood_in |= found
        self.taken |= set(found.values())
        return found

    def now(self) -> Tensors:
        """The fleet with the charges that are left now."""
        return self.fleet if self.bill is None else {**self.fleet, **self.bill.now()}

    def end(self, finished: Iterable[int], losses: Mapping[int, float]) -> Tensors:
        fleet = dict(self.now())
        if "asked" in fleet:
            fleet["asked"], fleet["finished"] = fleet["asked"].clone(), fleet["finished"].clone()
            fleet["asked"][sorted(self.taken)] += 1
            fleet["finished"][list(finished)] += 1
        if "loss" in fleet and losses:
            fleet["loss"] = fleet["loss"].clone()
            fleet["loss"][list(losses)] = torch.tensor(list(losses.values()), dtype=torch.float64)
        if self.bill is not None:
            fleet = dict(self.bill.end(fleet, self.taken, self.context))
        self.after = self.participants.dropout.next(fleet, self.context)
        return self.after

    def record(self) -> Mapping[str, Any]:
        said: dict[str, Any] = {}
        if self.participants.dropout.replace:
            said["stand_ins"] = {str(lost): by for lost, by in sorted(self.stood_in.items())}
        if self.bill is not None:
            said |= self.bill.record(self.after)
        return said
