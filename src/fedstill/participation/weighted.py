"""Weighted client sampling: by battery, by past completion, and by link.

    weight = (floor + (1 - floor) level^power) * (finished + prior) / (sampled + prior) * (link, if on Wi-Fi)

Each factor is used only if it is set. None is ever zero: every eligible client can be sampled, since a weak device may
hold data that no other client has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Self

import numpy as np
import torch
from pydantic import Field, model_validator

from fedstill.core.errors import InputError
from fedstill.core.protocols import Profile, RoundContext
from fedstill.core.streams import Streams
from fedstill.core.task import Tensors
from fedstill.participation.draws import drawn, luck
from fedstill.participation.policies import Probability, Sized, policies


def levels(fleet: Tensors) -> np.ndarray:
    """The charge of each client as a fraction of the capacity, 0 to 1."""
    share: np.ndarray = fleet["charge"].numpy() / fleet["capacity"].numpy()
    return share


class Weighted(Sized):
    """The weighting settings shared by all weighted policies."""

    battery_aware: bool = Field(False, description="prefer full batteries, and leave out those below the threshold")
    threshold: Probability = Field(0.2, description="level below which a device is not sampled, as a share of capacity")
    floor: float = Field(0.05, gt=0, le=1, description="weight of an empty battery, relative to 1 for a full one")
    power: float = Field(
        1.0, gt=0, description="exponent of the charge level: above 1, full batteries are preferred more strongly"
    )
    history: bool = Field(False, description="weight clients by their fraction of finished rounds")
    prior: float = Field(1.0, gt=0, description="finished rounds credited to every client at the start")
    link: float = Field(1.0, ge=1, description="factor of the weight for devices on Wi-Fi; 1: no effect")

    @model_validator(mode="after")
    def _nothing_in_vain(self) -> Self:
        # By value, not by which fields were set: a written-out configuration contains every setting.
        fields = type(self).model_fields
        for switch, dependent in (("battery_aware", ("threshold", "floor", "power")), ("history", ("prior",))):
            vain = [name for name in dependent if getattr(self, name) != fields[name].default]
            if vain and not getattr(self, switch):
                raise ValueError(f"{vain[0]} has no effect without {switch}: true")
        return self

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"fleet"} if self.battery_aware or self.link != 1 else ())

    def start(self, profiles: Sequence[Profile], streams: Streams) -> Tensors:
        nobody = torch.zeros(len(profiles), dtype=torch.int64)
        return {"asked": nobody, "finished": nobody.clone()} if self.history else {}

    def eligible(self, fleet: Tensors, available: np.ndarray) -> np.ndarray:
        return available[levels(fleet)[available] >= self.threshold] if self.battery_aware else available

    def weights(self, fleet: Tensors, ids: np.ndarray) -> np.ndarray:
        weights = np.ones(len(ids))
        if self.battery_aware:
            weights *= self.floor + (1 - self.floor) * levels(fleet)[ids] ** self.power
        if self.history:
            sampled, finished = (fleet[name].numpy()[ids] for name in ("asked", "finished"))
            weights *= (finished + self.prior) / (sampled + self.prior)
        if self.link != 1:
            weights[fleet["wifi"].numpy()[ids]] *= self.link
        return weights

    def choose(self, candidates: np.ndarray, fleet: Tensors, clients: int, context: RoundContext) -> np.ndarray:
        return np.sort(self.in_order(candidates, fleet, clients, context)[: self.cohort(clients)])

    def in_order(self, ids: np.ndarray, fleet: Tensors, clients: int, context: RoundContext) -> np.ndarray:
        """All of these clients, in the order of a weighted draw."""
        return drawn(ids, self.weights(fleet, ids), len(ids), luck(context, "select", clients))


@policies.register("battery-aware")
class BatteryAware(Weighted):
    """Random sampling weighted by battery charge; clients below a charge threshold are excluded."""

    battery_aware: Literal[True] = Field(True, description="always, in this policy")


def check_candidates(candidates: int | None, cohort: int, clients: int) -> None:
    """Refuse fewer candidates than clients to sample, or more than there are clients."""
    if candidates is not None and not cohort <= candidates <= clients:
        raise InputError(
            f"participation.candidates is {candidates}: give at least the {cohort} to be sampled and at most all"
            f" {clients} clients"
        )
