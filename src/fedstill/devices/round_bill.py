"""The costs of one round for the devices of a fleet: charges before and after, and the energy of each stage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedstill.core.protocols import Profile, RoundContext
from fedstill.core.task import Tensors
from fedstill.devices.energy import Energy, pays
from fedstill.devices.fleet_record import DeviceRecord, FleetRecord
from fedstill.participation.weighted import levels

if TYPE_CHECKING:
    from fedstill.devices.fleet import Fleet


class FleetBill:
    """The bill of one round. `costs` are floating-point operations per forward pass, by architecture."""

    def __init__(self, devices: Fleet, fleet: Tensors, costs: Mapping[str, float]) -> None:
        self.devices, self.fleet, self.costs = devices, fleet, costs
        self.left: dict[int, float] = {}  # remaining charge of clients that spent some, Wh
        self.spent: dict[int, list[Energy]] = {}
        self.rested: dict[str, float] = {}

    def charge(self, who: Profile, down: int, work: float, up: int) -> str | None:
        cost = self.devices.spent(self.fleet, who.id, down, work * self.costs[who.architecture], up)
        paid = pays(self.charge_of(who.id), cost)
        self.left[who.id] = paid.left
        self.spent.setdefault(who.id, []).append(paid.used)
        return None if paid.alive else f"its battery ran out in {paid.ended}"

    def charge_of(self, client: int) -> float:
        return self.left[client] if client in self.left else float(self.fleet["charge"][client])

    def empty(self, client: int) -> bool:
        return self.charge_of(client) <= 0

    def now(self) -> Tensors:
        if not self.left:
            return {}
        charge = self.fleet["charge"].clone()
        charge[list(self.left)] = torch.tensor(list(self.left.values()), dtype=charge.dtype)
        return {"charge": charge}

    def end(self, fleet: Tensors, sampled: set[int], context: RoundContext) -> Tensors:
        # A sampled client that received no request, because of an empty battery or absence, is idle like the others.
        idle = np.ones(len(fleet["charge"]), dtype=bool)
        idle[[client for client in sampled if client in self.left]] = False
        rested = self.devices.rest(fleet, idle, context)
        self.rested = {"drained": float(rested.drained.sum()), "gained": float(rested.gained.sum())}
        return rested.fleet

    def record(self, after: Tensors) -> FleetRecord:
        """Wh of the participants, before and after their work; and the current charge of batteries, by tier."""
        level, tier = levels(after), after["tier"].numpy()
        means = {
            name: float(level[tier == number].mean())
            for number, name in enumerate(self.devices.order)
            if (tier == number).any()
        }
        return FleetRecord(
            devices={client: self._device(client) for client in sorted(self.left)},
            level=means,
            charge=float(after["charge"].sum()),
            **self.rested,
        )

    def _device(self, client: int) -> DeviceRecord:
        spent = self.spent[client]
        return DeviceRecord(
            before=float(self.fleet["charge"][client]),
            after=self.left[client],
            compute=sum(one.compute for one in spent),
            communication=sum(one.communication for one in spent),
            background=sum(one.background for one in spent),
            seconds=sum(one.seconds for one in spent),
        )
