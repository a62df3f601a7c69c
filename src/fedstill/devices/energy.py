"""The energy of one device's work, in watt-hours: download, training and upload, and where its battery becomes empty.

All energies are multiples of 2^-32 Wh, about a microjoule: up to two million watt-hours, their sums and differences are
exact in double precision, in any order. So a device's initial charge equals its remaining charge plus its consumption
bit for bit, and an audit of a run compares with `==`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple, Self, TypeVar

import numpy as np
from pydantic import Field

from fedstill.core.settings import Settings

_STEPS = 2.0**32  # in a watt-hour
_HOUR = 3600.0  # seconds

Number = TypeVar("Number", float, np.ndarray)
When = Literal["download", "training", "upload"]


def rounded(energy: Number) -> Number:
    """Round to the nearest multiple of 2^-32 Wh."""
    if isinstance(energy, np.ndarray):
        return np.round(energy * _STEPS) / _STEPS
    return round(energy * _STEPS) / _STEPS


class Link(Settings):
    """A device's network connection: its speed, and the fraction of the battery that a transfer takes.

    A transfer of x hours takes slope * x + offset percent of the battery's capacity, and never less than zero; without
    any bytes there is no transfer. The offset is charged for every transfer, however short.

    The coefficients are those of the thesis "Mitigating Issues Caused by Device Dropout in Knowledge Distillation Based
    Federated Learning", which takes them from Kalic, Bojic and Kusek, "Energy consumption in Android phones when using
    wireless communication technologies" (MIPRO 2012). The thesis reads x as seconds and gives no unit for the result;
    ten seconds would then take 181 units. Hours and percent are our correction.
    """

    down: float = Field(gt=0, description="Mbit/s from the server to the device")
    up: float = Field(gt=0, description="Mbit/s from the device to the server")
    down_slope: float = Field(ge=0, description="percent of the battery's capacity per hour of download")
    down_offset: float = Field(description="percent of the battery's capacity per download, in addition")
    up_slope: float = Field(ge=0, description="percent of the battery's capacity per hour of upload")
    up_offset: float = Field(description="percent of the battery's capacity per upload, in addition")

    def without_offsets(self) -> Self:
        """The same link with lines through the origin: the energy of a transfer is in proportion to its duration."""
        return self.model_copy(update={"down_offset": 0.0, "up_offset": 0.0})

    def has_own_offsets(self) -> bool:
        fields = type(self).model_fields
        return any(getattr(self, name) != fields[name].default for name in ("down_offset", "up_offset"))

    def download(self, size: int) -> tuple[float, float]:
        """The seconds that a download of this many bytes takes, and the percentage of a battery."""
        return _transfer(size, self.down, self.down_slope, self.down_offset)

    def upload(self, size: int) -> tuple[float, float]:
        """The seconds that an upload of this many bytes takes, and the percentage of a battery."""
        return _transfer(size, self.up, self.up_slope, self.up_offset)


class Wifi(Link):
    """Wi-Fi: every download takes 0.17 % of the battery or more; an upload is free up to 7.6 minutes.

    >>> Wifi().upload(50_000_000)  # 400 Mbit at 20 Mbit/s
    (20.0, 0.0)
    """

    down: float = Field(50.0, gt=0, description="Mbit/s from the server to the device")
    up: float = Field(20.0, gt=0, description="Mbit/s from the device to the server")
    down_slope: float = Field(18.09, ge=0, description="percent of the battery's capacity per hour of download")
    down_offset: float = Field(0.17, description="percent of the battery's capacity per download, in addition")
    up_slope: float = Field(21.24, ge=0, description="percent of the battery's capacity per hour of upload")
    up_offset: float = Field(-2.68, description="percent of the battery's capacity per upload, in addition")


class Cellular(Link):
    """3G: every upload takes 2.67 % of the battery or more; a download is free up to 3.2 minutes.

    >>> seconds, percent = Cellular().upload(45_000_000)  # 360 Mbit at 1 Mbit/s are 0.1 hours: 1.531 + 2.67
    >>> seconds, round(percent, 6)
    (360.0, 4.201)
    """

    down: float = Field(4.0, gt=0, description="Mbit/s from the server to the device")
    up: float = Field(1.0, gt=0, description="Mbit/s from the device to the server")
    down_slope: float = Field(20.59, ge=0, description="percent of the battery's capacity per hour of download")
    down_offset: float = Field(-1.09, description="percent of the battery's capacity per download, in addition")
    up_slope: float = Field(15.31, ge=0, description="percent of the battery's capacity per hour of upload")
    up_offset: float = Field(2.67, description="percent of the battery's capacity per upload, in addition")


def _transfer(size: int, speed: float, slope: float, offset: float) -> tuple[float, float]:
    if size <= 0:
        return 0.0, 0.0
    seconds = size * 8 / (speed * 1e6)
    return seconds, max(0.0, slope * seconds / _HOUR + offset)


class Stage(NamedTuple):
    """A stage of a device's work: its own energy, the background energy meanwhile (Wh), and its duration."""

    own: float
    background: float
    seconds: float

    @classmethod
    def of(cls, own: float, background_watts: float, seconds: float) -> Stage:
        return cls(rounded(own), rounded(background_watts * seconds / _HOUR), seconds)

    @property
    def total(self) -> float:
        return self.own + self.background

    def until(self, energy: float) -> Stage:
        """This stage, interrupted after it has used this much energy."""
        share = energy / self.total if self.total else 0.0
        own = min(rounded(self.own * share), energy)
        return Stage(own, energy - own, self.seconds * share)


NOTHING = Stage(0.0, 0.0, 0.0)


class Energy(NamedTuple):
    """The energy of a device's work, stage by stage."""

    download: Stage = NOTHING
    training: Stage = NOTHING
    upload: Stage = NOTHING

    @classmethod
    def sum(cls, parts: Iterable[Energy]) -> Energy:
        """The energy of several pieces of work, stage by stage."""
        return cls(*(Stage(*map(sum, zip(*stages, strict=True))) for stages in zip(*parts, strict=True)))

    @property
    def compute(self) -> float:
        return self.training.own

    @property
    def communication(self) -> float:
        return self.download.own + self.upload.own

    @property
    def background(self) -> float:
        return sum(stage.background for stage in self)

    @property
    def total(self) -> float:
        return sum(stage.total for stage in self)

    @property
    def seconds(self) -> float:
        return sum(stage.seconds for stage in self)


class Paid(NamedTuple):
    """The remaining charge, the energy used, and the stage at which the battery became empty (None: it did not)."""

    left: float
    used: Energy
    ended: When | None = None

    @property
    def alive(self) -> bool:
        return self.ended is None


def pays(charge: float, energy: Energy) -> Paid:
    """Take the energy from a charge; a device with too little charge uses what it has, and stops there.

    A device whose charge is exactly sufficient finishes. Always `charge == left + used.total`.

    >>> work = Energy(Stage(1.0, 0.0, 10.0), Stage(2.0, 0.0, 40.0), Stage(1.0, 0.0, 10.0))
    >>> pays(5.0, work).left, pays(5.0, work).alive
    (1.0, True)
    >>> paid = pays(2.0, work)
    >>> paid.left, paid.alive, paid.ended, paid.used.training
    (0.0, False, 'training', Stage(own=1.0, background=0.0, seconds=20.0))
    """
    if energy.total <= charge:
        return Paid(charge - energy.total, energy)
    left, used = charge, Energy()
    whens: tuple[When, ...] = ("download", "training", "upload")
    for when, stage in zip(whens, energy, strict=True):
        if stage.total > left:
            break
        left, used = left - stage.total, used._replace(**{when: stage})
    return Paid(0.0, used._replace(**{when: stage.until(left)}), when)
