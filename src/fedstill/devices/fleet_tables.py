"""The tables of a fleet, for a page and for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from fedstill.core.numbers import MISSING
from fedstill.core.table import Cell, Column, Table, make_table, percent, text, whole
from fedstill.devices.fleet_facts import Left, RoundCost, Span, TierFacts


def span(values: Span, digits: int = 1, scale: float = 1.0) -> str:
    """The range from the lowest to the highest.

    >>> span((3.04, 4.96)), span((0.5, 0.5), 0, 100)
    ('3.0–5.0', '50')
    """
    low, high = (f"{scale * value:.{digits}f}" for value in values)
    return low if low == high else f"{low}{MISSING}{high}"


def energy(value: float) -> str:
    """Wh with enough digits to distinguish devices.

    >>> energy(1.22066), energy(0.00001), energy(0.0)
    ('1.2207', '<0.0001', '0')
    """
    return "0" if value == 0 else "<0.0001" if value < 0.00005 else f"{value:.4f}"


def seconds(value: float) -> str:
    """Short times with more digits.

    >>> seconds(0.0312), seconds(359.96)
    ('0.03', '360')
    """
    return f"{value:.2f}" if value < 10 else f"{value:,.0f}"


def tiers_table(tiers: Sequence[TierFacts]) -> Table:
    columns = (
        Column[TierFacts]("Tier", "tier", lambda one: text(one.tier), right=False),
        Column[TierFacts]("Devices", "devices", lambda one: whole(one.devices)),
        Column[TierFacts]("Capacity, Wh", "capacity", lambda one: Cell(span(one.capacity), one.capacity[0])),
        Column[TierFacts]("Power, W", "watts", lambda one: Cell(span(one.watts), one.watts[0])),
        Column[TierFacts]("Speed, GFLOP/s", "speed", lambda one: Cell(span(one.speed), one.speed[0])),
        Column[TierFacts]("Charge, %", "charge", lambda one: Cell(span(one.charge, 0, 100), one.charge[0])),
        Column[TierFacts]("On Wi-Fi", "wifi", lambda one: percent(one.wifi)),
    )
    note = "From the lowest to the highest of a tier's devices, before the first round."
    return make_table("tiers", "Tiers", columns, tiers, note)


def costs_table(costs: Sequence[RoundCost]) -> Table:
    def wh(name: str) -> Column[RoundCost]:
        return Column(name.capitalize(), name, lambda one: Cell(energy(getattr(one, name)), getattr(one, name)))

    columns = (
        Column[RoundCost]("Tier", "tier", lambda one: text(one.tier), right=False),
        Column[RoundCost]("Link", "link", lambda one: text(one.link), right=False),
        Column[RoundCost]("Devices", "devices", lambda one: whole(one.devices)),
        *(wh(name) for name in ("download", "training", "upload", "background")),
        Column[RoundCost]("Of battery", "share", lambda one: percent(one.share)),
        Column[RoundCost]("Seconds", "seconds", lambda one: Cell(seconds(one.seconds), one.seconds)),
    )
    note = "Means over the devices of a tier and link, each asked for the first time; energy in Wh."
    return make_table("costs", "What a round costs a device", columns, costs, note)


def left_table(left: Sequence[Left]) -> Table:
    columns = (
        Column[Left]("Tier", "tier", lambda one: text(one.tier), right=False),
        Column[Left]("Devices", "devices", lambda one: whole(one.devices)),
        Column[Left]("Charge before", "before", lambda one: percent(one.before)),
        Column[Left]("Charge after", "after", lambda one: percent(one.after)),
        Column[Left]("Flat", "flat", lambda one: whole(one.flat)),
        Column[Left]("Rounds attended", "attended", lambda one: Cell(f"{one.attended:.1f}", one.attended)),
        Column[Left](
            "Wh a round",
            "spent",
            lambda one: Cell(MISSING if one.spent is None else energy(one.spent), one.spent),
        ),
    )
    return make_table("left", "Tiers after the last round", columns, left)
