"""The section `fleet` of a round's record: batteries and energy."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from fedstill.core.records import Record, RecordSection, RoundRecord, record_sections


class DeviceRecord(Record):
    """Battery and energy of one device in a round, in watt-hours."""

    before: float = Field(description="charge before its work")
    after: float = Field(description="charge after its work")
    compute: float = Field(description="energy spent on computation")
    communication: float = Field(description="energy spent on the link")
    background: float = Field(description="energy spent on everything else meanwhile")
    seconds: float = Field(description="simulated time of its work")

    @property
    def spent(self) -> float:
        return self.compute + self.communication + self.background


@record_sections.register("fleet")
class FleetRecord(RecordSection):
    """Batteries and energy of the devices, if the experiment has a fleet."""

    part_of: ClassVar[frozenset[Literal["round", "result", "printed run"]]] = frozenset({"round"})

    devices: dict[int, DeviceRecord] = Field(description="clients that worked in the round, surveys included")
    level: dict[str, float] = Field(description="mean charge by tier after the round, as a share of capacity")
    charge: float = Field(description="charge of all devices after the round, Wh")
    drained: float = Field(description="Wh that idle devices lost between rounds")
    gained: float = Field(description="Wh that idle devices gained by charging")


def devices_in(record: RoundRecord) -> dict[int, DeviceRecord]:
    """The devices that worked in a round, surveys included; empty without a fleet."""
    fleet = record.section(FleetRecord)
    return {} if fleet is None else fleet.devices
