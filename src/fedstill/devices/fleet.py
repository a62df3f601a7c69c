"""The fleet: devices with batteries, in tiers, each on Wi-Fi or a mobile network.

Units: battery capacity is set in mAh, as on the label, and stored in watt-hours (mAh * volts / 1000); power in W; speed
in GFLOP/s (10^9 operations per second, a multiply-add being two); bandwidth in Mbit/s (10^6 bits); sizes in bytes. The
energy of a device's work in a round is computed from counted operations and measured bytes, never from a clock:

    training   watts * operations / speed
    download   the link's line: percent of the capacity by hours of transfer, times `communication_factor`
    upload     likewise
    background `background` watts over the time of all three

Example of one phone of the lower tier: 3500 mAh * 3.85 V = 13.475 Wh; at 4 W and 6 GFLOP/s 360 GFLOP take 60 s and 4 *
60 / 3600 = 0.0667 Wh, 0.49 % of it; an upload of 45 MB over 3G at 1 Mbit/s takes 360 s, 0.1 h, and 15.31 * 0.1 + 2.67 =
4.201 %, 0.566 Wh.

Our own assumptions: speeds, bandwidths, initial charges, recharging, background power and the hours between rounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Literal, NamedTuple, Self

import numpy as np
import torch
from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from fedstill.core.protocols import RoundContext
from fedstill.core.sections import HasSections, Section, sections
from fedstill.core.settings import Settings
from fedstill.core.streams import Streams
from fedstill.core.task import Tensors
from fedstill.devices.energy import Cellular, Energy, Link, Stage, Wifi, rounded
from fedstill.devices.round_bill import FleetBill


def _pair(given: Any) -> Any:
    """A single number is a range of one value; anything else than two numbers is refused."""
    values = [given, given] if isinstance(given, int | float) else given
    numbers = isinstance(values, list | tuple) and all(isinstance(one, int | float) for one in values)
    if not numbers or len(values) != 2 or any(isinstance(one, bool) for one in values):
        raise ValueError(f"give one number, or a range as [lowest, highest], not {given!r}")
    return tuple(values)


def _ascending(span: tuple[float, float]) -> tuple[float, float]:
    if span[0] > span[1]:
        raise ValueError(f"a range goes from the lowest to the highest, not from {span[0]:g} to {span[1]:g}")
    return span


def _positive(span: tuple[float, float]) -> tuple[float, float]:
    if span[0] <= 0:
        raise ValueError(f"must be above zero, not {span[0]:g}")
    return span


def _share(span: tuple[float, float]) -> tuple[float, float]:
    if span[0] < 0 or span[1] > 1:
        raise ValueError(f"is a share of the capacity, from 0 to 1, not {span[0]:g} to {span[1]:g}")
    return span


Span = Annotated[tuple[float, float], BeforeValidator(_pair), AfterValidator(_ascending)]
Positive = Annotated[Span, AfterValidator(_positive)]
Share = Annotated[Span, AfterValidator(_share)]


class Tier(Settings):
    """Devices of one kind; for a range every device draws its own value uniformly."""

    share: float = Field(1.0, ge=0, description="share of clients in this tier, relative to the other tiers")
    capacity: Positive = Field(description="battery capacity, mAh; one number or a range")
    watts: Positive = Field(description="power while training, W; one number or a range")
    speed: Positive = Field(description="speed of training, GFLOP/s; one number or a range")
    charge: Share = Field(
        (0.5, 1.0), description="charge at the start, as a share of the capacity; one number or a range"
    )


# Capacity and power are those of phones in the thesis cited in `Link`. Speeds are our estimate of what training
# sustains on such phones: at the middle of their ranges 6, 30 and 90 GFLOP/s. So mid-range devices are 5 and high-end
# ones 15 times as fast as low-end ones and, although they draw more power, take 0.28 and 0.16 times the energy for
# the same work, as the thesis states without numbers. Initial charges are our assumption too.
TIERS: dict[str, dict[str, Any]] = {
    "low": {"capacity": (3000, 4000), "watts": (3, 5), "speed": (4, 8), "charge": (0.4, 0.8)},
    "mid": {"capacity": (4500, 5000), "watts": (4, 7), "speed": (20, 40), "charge": (0.5, 0.9)},
    "high": {"capacity": (5000, 6000), "watts": (5, 14), "speed": (60, 120), "charge": (0.6, 1.0)},
}


class Rested(NamedTuple):
    """The fleet after the hours between two rounds, with the energy that each client drained and gained in them, Wh."""

    fleet: Tensors
    drained: np.ndarray
    gained: np.ndarray


@sections.register("fleet")
class Fleet(Section):
    """Devices with batteries; without a fleet, clients have no energy limit.

    State, one value per client: `charge` and `capacity` (Wh), `watts`, `speed` (GFLOP/s), `tier` (an index into
    `order`) and `wifi` (else on the mobile network).
    """

    about = "devices with batteries; left out, clients have power without end"
    added_later = frozenset({"offsets"})
    participation = "devices"
    for_many = True
    simulated = "batteries"

    tiers: dict[str, Tier] = Field(
        default_factory=lambda: {name: Tier(**settings) for name, settings in TIERS.items()},
        description="kinds of devices by name; for low, mid and high only the values that differ from the defaults",
    )
    volts: float = Field(3.85, gt=0, description="voltage of all batteries, V; converts mAh to energy")
    wifi_share: float = Field(0.7, ge=0, le=1, description="fraction of clients on Wi-Fi; the others are on 3G")
    wifi: Wifi = Field(default_factory=Wifi, description="the Wi-Fi link")
    cellular: Cellular = Field(default_factory=Cellular, description="the mobile link, by default 3G")
    offsets: Literal["published", "none"] = Field(
        "published",
        description="published: each transfer takes its link's offset, however short it is; none: the energy of a"
        " transfer is in proportion to its duration",
    )
    communication_factor: float = Field(1.0, ge=0, description="factor of the energy of every transfer")
    background: float = Field(0.1, ge=0, description="background power of a device, W")
    hours: float = Field(
        0.25, ge=0, description="time between two rounds, during which all devices consume background power, h"
    )
    recharge: float = Field(
        0.05,
        ge=0,
        le=1,
        description="charge gained between two rounds by a plugged-in device, as a share of its capacity",
    )
    plugged: float = Field(
        0.3, ge=0, le=1, description="probability that a device that was not sampled is plugged in between two rounds"
    )

    @field_validator("tiers", mode="before")
    @classmethod
    def _defaults_of_known_tiers(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        return {name: _filled(str(name), tier) for name, tier in given.items()}

    @field_validator("tiers")
    @classmethod
    def _some_devices(cls, tiers: dict[str, Tier]) -> dict[str, Tier]:
        if not tiers:
            raise ValueError(f"a fleet needs at least one tier: name some, or leave tiers out for {', '.join(TIERS)}")
        if not any(tier.share for tier in tiers.values()):
            raise ValueError("at least one tier needs a share above zero")
        return tiers

    @model_validator(mode="after")
    def _one_source_of_offsets(self) -> Self:
        if self.offsets == "none" and (self.wifi.has_own_offsets() or self.cellular.has_own_offsets()):
            raise ValueError("offsets=none leaves the offsets of links out, and a link has its own: set one of the two")
        return self

    @cached_property
    def links(self) -> tuple[Link, Link]:
        """Wi-Fi and the mobile link, as transfers are charged."""
        if self.offsets == "published":
            return self.wifi, self.cellular
        return self.wifi.without_offsets(), self.cellular.without_offsets()

    @property
    def order(self) -> tuple[str, ...]:
        """Names of the tiers by capacity, so that the fleet does not depend on the order in which they were written."""
        return tuple(sorted(self.tiers, key=lambda name: (self.tiers[name].capacity, name)))

    def start(self, clients: int, streams: Streams) -> Tensors:
        """The devices before the first round: exact fractions of tiers and links, and one draw of each value."""
        tiers = [self.tiers[name] for name in self.order]
        tier = _shuffled([tier.share for tier in tiers], clients, streams.draw("fleet", "tier"))
        cellular = _shuffled([self.wifi_share, 1 - self.wifi_share], clients, streams.draw("fleet", "link"))

        def drawn(name: str) -> np.ndarray:
            low, high = np.array([getattr(tier, name) for tier in tiers]).T
            luck = streams.draw("fleet", name).random(clients)
            values: np.ndarray = np.minimum(low[tier] + luck * (high - low)[tier], high[tier])
            return values

        capacity = rounded(drawn("capacity") * (self.volts / 1000))
        state = {
            "charge": rounded(drawn("charge") * capacity),
            "capacity": capacity,
            "watts": drawn("watts"),
            "speed": drawn("speed"),
            "tier": tier,
            "wifi": cellular == 0,
        }
        return {name: torch.from_numpy(values) for name, values in state.items()}

    def spent(self, fleet: Tensors, client: int, down: int, flops: float, up: int) -> Energy:
        """The energy for this device to receive, compute and send these amounts of bytes and operations."""
        capacity, watts, speed = (float(fleet[name][client]) for name in ("capacity", "watts", "speed"))
        link = self.links[0 if bool(fleet["wifi"][client]) else 1]

        def transfer(cost: tuple[float, float]) -> Stage:
            seconds, percent = cost
            return Stage.of(percent / 100 * capacity * self.communication_factor, self.background, seconds)

        seconds = flops / (speed * 1e9)
        return Energy(
            transfer(link.download(down)),
            Stage.of(watts * seconds / 3600, self.background, seconds),
            transfer(link.upload(up)),
        )

    def bill(self, fleet: Tensors, costs: Mapping[str, float]) -> FleetBill:
        """The costs of a round, by device; `costs` are floating-point operations per forward pass, by architecture."""
        return FleetBill(self, fleet, costs)

    def rest(self, fleet: Tensors, idle: np.ndarray, context: RoundContext) -> Rested:
        """The hours between two rounds: all devices drain in the background, and some of the idle ones are charged.

        For each client `after == before - drained + gained` holds bit for bit.
        """
        charge, capacity = fleet["charge"].numpy(), fleet["capacity"].numpy()
        plugged = idle & (context.streams.draw("fleet", "plugged").random(len(charge)) < self.plugged)
        drained = np.minimum(charge, rounded(self.background * self.hours))
        left = charge - drained
        gained = np.where(plugged, np.minimum(rounded(self.recharge * capacity), capacity - left), 0.0)
        return Rested({**fleet, "charge": torch.from_numpy(left + gained)}, drained, gained)


def apportion(shares: list[float], seats: int) -> np.ndarray:
    """Integers in proportion to the shares, by largest remainder; equal remainders favour the earlier.

    >>> apportion([1, 1, 1], 40).tolist(), apportion([0.5, 0.3, 0.2], 10).tolist()
    ([14, 13, 13], [5, 3, 2])
    """
    quotas = np.array(shares, float) / sum(shares) * seats
    counts = np.floor(quotas).astype(np.int64)
    by_remainder = np.argsort(counts - quotas, kind="stable")
    counts[by_remainder[: seats - int(counts.sum())]] += 1
    return counts


def _shuffled(shares: list[float], clients: int, generator: np.random.Generator) -> np.ndarray:
    """For every client an index into the shares, each as often as its share requires."""
    return generator.permutation(np.repeat(np.arange(len(shares)), apportion(shares, clients)))


def _filled(name: str, given: Any) -> Any:
    """A tier's settings over the defaults of that name; an error if it has no defaults and a setting is missing."""
    if not isinstance(given, Mapping):
        return given
    settings = {**TIERS.get(name, {}), **given}
    missing = [field for field, about in Tier.model_fields.items() if about.is_required() and field not in settings]
    if missing:
        raise ValueError(f"tier {name!r} needs {', '.join(missing)}: only {', '.join(TIERS)} have values of their own")
    return settings


def fleet_section(experiment: HasSections) -> Fleet | None:
    """The experiment's fleet, if it has one."""
    section = experiment.section("fleet")
    assert section is None or isinstance(section, Fleet)
    return section
