"""Who takes part in an experiment, all parts of it together: selection, dropout, stand-ins, batteries, clusters.

`Participants` are the parts; a `Book` is one round of them, and is thrown away with it: whatever outlives the round is
fleet state. A round that is killed begins again from the fleet it began with, so nothing is paid twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch

from fedstill.core.errors import InputError
from fedstill.core.protocols import Exchange, Fate, Profile, Survey, Turn
from fedstill.core.streams import Streams
from fedstill.core.task import Tensors
from fedstill.participation.clusters import Clusters
from fedstill.participation.dropout import Dropout, NoDropout
from fedstill.participation.energy import Energy, pays
from fedstill.participation.fleet import Fleet, levels
from fedstill.participation.policies import Everyone, Policy
from fedstill.participation.replacement import replacements

TRAINED = 3.0  # forward passes that training on a sample costs: one, and twice as much backward
_WANTED = {
    "fleet": "devices with batteries and links, and there is no fleet: set fleet={}",
    "clusters": "clusters, and there are none: set clusters={}",
    "labels": "labels, and this data has none",
    "shared-model": "a model that all share for losses=ask, and this method has none",
}


@dataclass(frozen=True)
class Participants:
    """The parts that decide who takes part, and what it costs them."""

    policy: Policy = field(default_factory=Everyone)
    dropout: Dropout = field(default_factory=NoDropout)
    fleet: Fleet | None = None
    clusters: Clusters | None = None
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

    def attend(self, fleet: Tensors, profiles: Sequence[Profile], turn: Turn) -> Book:
        return Book(self, fleet, profiles, turn)


class Book:
    """The book of one round."""

    def __init__(self, participants: Participants, fleet: Tensors, profiles: Sequence[Profile], turn: Turn) -> None:
        self.participants, self.fleet, self.profiles, self.turn = participants, fleet, profiles, turn
        self.taken: set[int] = set()  # whoever was asked, or would have been
        self.stood_in: dict[int, int] = {}  # by whom they stand in for
        self.left: dict[int, float] = {}  # charge of those who spent some, Wh
        self.spent: dict[int, list[Energy]] = {}
        self.rested: dict[str, float] = {}

    @cached_property
    def reached(self) -> np.ndarray:
        return self.participants.policy.available(len(self.profiles), self.turn)

    def surveys(self, models: Mapping[str, Tensors]) -> Iterable[Survey]:
        participants = self.participants
        there = participants.dropout.present(self.fleet, self.reached, self.turn)
        if participants.clusters is not None:
            asked = participants.clusters.survey(self.fleet, there, participants.classes, self.turn)
            if asked is not None:
                yield asked
        there = participants.policy.eligible(self.now(), there)
        asked = participants.policy.survey(self.fleet, there, models, participants.classes, self.turn)
        if asked is not None:
            yield asked

    def eligible(self) -> np.ndarray:
        return self.participants.policy.eligible(self.now(), self.reached)

    def cohort(self) -> Sequence[int]:
        chosen = self.participants.policy.choose(self.eligible(), self.now(), len(self.profiles), self.turn)
        self.taken |= {int(client) for client in chosen}
        return sorted(self.taken)

    def fates(self, clients: Sequence[int], standing_in: bool = False) -> Mapping[int, Fate]:
        dropout = self.participants.dropout
        if standing_in and not dropout.replacements_can_drop:
            return {}
        return dropout.fates(self.fleet, clients, self.turn)

    def predicted(self, who: Profile) -> float:
        return TRAINED * who.samples * self.participants.epochs

    def charge(self, who: Profile, down: int, work: float, up: int) -> str | None:
        devices = self.participants.fleet
        if devices is None:
            return None
        cost = devices.spent(self.fleet, who.id, down, work * self.participants.costs[who.architecture], up)
        paid = pays(self.charge_of(who.id), cost)
        self.left[who.id] = paid.left
        self.spent.setdefault(who.id, []).append(paid.used)
        return None if paid.alive else f"its battery ran out in {paid.ended}"

    def charge_of(self, client: int) -> float:
        return self.left[client] if client in self.left else float(self.fleet["charge"][client])

    def flat(self, client: int) -> bool:
        return self.participants.fleet is not None and self.charge_of(client) <= 0

    def stand_ins(self, lost: Sequence[int]) -> Mapping[int, int]:
        participants = self.participants
        missing = [client for client in lost if client not in self.stood_in]
        if not participants.dropout.replace or not missing:
            return {}
        able = participants.dropout.able(self.fleet, self.eligible(), self.turn)
        if participants.fleet is not None:
            able = able[self.now()["charge"].numpy()[able] > 0]
        found = replacements(
            missing, able, self.fleet, participants.policy.weights(self.now(), able), self.turn, asked=self.taken
        )
        self.stood_in |= found
        self.taken |= set(found.values())
        return found

    def now(self) -> Tensors:
        """The fleet with the charges that are left now."""
        return {**self.fleet, "charge": self.charges()} if self.left else self.fleet

    def charges(self) -> torch.Tensor:
        charge = self.fleet["charge"].clone()
        charge[list(self.left)] = torch.tensor(list(self.left.values()), dtype=charge.dtype)
        return charge

    def end(self, finished: Iterable[int], losses: Mapping[int, float]) -> Tensors:
        fleet = dict(self.now())
        if "asked" in fleet:
            fleet["asked"], fleet["finished"] = fleet["asked"].clone(), fleet["finished"].clone()
            fleet["asked"][sorted(self.taken)] += 1
            fleet["finished"][list(finished)] += 1
        if "loss" in fleet and losses:
            fleet["loss"] = fleet["loss"].clone()
            fleet["loss"][list(losses)] = torch.tensor(list(losses.values()), dtype=torch.float64)
        devices = self.participants.fleet
        if devices is not None:
            # Who was wanted and could not be asked, being flat or away, is as idle as who was not wanted.
            idle = np.ones(len(self.profiles), dtype=bool)
            idle[[client for client in self.taken if client in self.left]] = False
            rested = devices.rest(fleet, idle, self.turn)
            self.rested = {"drained": float(rested.drained.sum()), "gained": float(rested.gained.sum())}
            fleet = dict(rested.fleet)
        self.after = self.participants.dropout.next(fleet, self.turn)
        return self.after

    def record(self) -> Mapping[str, Any]:
        said: dict[str, Any] = {}
        if self.participants.dropout.replace:
            said["stand_ins"] = {str(lost): by for lost, by in sorted(self.stood_in.items())}
        if self.participants.fleet is not None:
            said |= self._energy(self.participants.fleet)
        return said

    def _energy(self, devices: Fleet) -> dict[str, Any]:
        """Wh of those who took part, before and after their work; and how full batteries are now, by tier."""
        level, tier = levels(self.after), self.after["tier"].numpy()
        means = {
            name: float(level[tier == number].mean())
            for number, name in enumerate(devices.order)
            if (tier == number).any()
        }
        return {
            "devices": {
                str(client): {
                    "before": float(self.fleet["charge"][client]),
                    "after": self.left[client],
                    "compute": sum(one.compute for one in self.spent[client]),
                    "communication": sum(one.communication for one in self.spent[client]),
                    "background": sum(one.background for one in self.spent[client]),
                    "seconds": sum(one.seconds for one in self.spent[client]),
                }
                for client in sorted(self.left)
            },
            "level": means,
            "charge": float(self.after["charge"].sum()),
            **self.rested,
        }
