"""Figures about devices with batteries: the fleet, one round of it, its charge over time, and energy by stage."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fedstill.core.numbers import count, listed, share
from fedstill.core.records import RoundRecord
from fedstill.core.task import Tensors
from fedstill.devices.fleet import Fleet
from fedstill.devices.fleet_facts import CELLULAR, WIFI, members
from fedstill.devices.fleet_record import DeviceRecord, FleetRecord
from fedstill.participation.weighted import levels
from fedstill.report.figure import (
    ALARM,
    DASHES,
    QUIET,
    Figure,
    Key,
    axis,
    colour,
    curve,
    dash,
    label,
    names_axis,
    whole_axis,
)

KINDS = {"compute": "var(--series-4)", "communication": "var(--series-5)", "background": "var(--series-7)"}
LINKS = {WIFI: "circle", CELLULAR: "triangle-up"}
SPENT = "var(--unused)"
MANY = 60  # from this number of clients on their numbers are not shown
_MOST = 100  # bars of one round
_TOLD = 12  # clients that a sentence lists


def devices(id: str, title: str, fleet: Fleet, state: Tensors) -> Figure:
    """Every battery as a bar: its charge in its tier's colour, and the rest of its capacity."""
    tier, wifi = state["tier"].numpy(), state["wifi"].numpy()
    charge, capacity = state["charge"].numpy(), state["capacity"].numpy()
    order = np.lexsort((capacity, tier))
    x = [str(client) for client in order]
    told = [
        f"{name}: {count(len(own), 'device')}, {charge[own].sum():.0f} of {capacity[own].sum():.0f} Wh"
        for name, own in members(fleet, state).items()
    ]
    hover = [
        f"client {client} ({label(fleet.order[tier[client]])}, {WIFI if wifi[client] else CELLULAR}):"
        f" {charge[client]:.2f} of {capacity[client]:.2f} Wh, {100 * charge[client] / capacity[client]:.0f} %"
        for client in order
    ]
    data = [
        _bars(x, charge[order], [colour(tier[client]) for client in order], hover),
        _bars(x, (capacity - charge)[order], SPENT, hover),
    ]
    keys = _tier_keys(fleet, state)
    keys.append(Key("empty part of the capacity", SPENT, shape="box"))
    if len(order) <= _MOST:
        above = 0.035 * float(capacity.max())
        for link, mark in LINKS.items():
            there = [client for client in order if wifi[client] == (link == WIFI)]
            if there:
                keys.append(Key(f"on {link}", QUIET, (len(data),), shape="symbol", symbol=mark))
                y = [float(capacity[client]) + above for client in there]
                data.append(_marks([str(client) for client in there], y, QUIET, mark, size=7))
    return Figure(
        id,
        title,
        f"Capacity and charge of every device. {'; '.join(told)}. {share(float(wifi.mean()), 0)} are on {WIFI}.",
        f"A bar is a device: as high as its battery's capacity, coloured by tier as far as it is charged. By tier,"
        f" {'; '.join(told)}. {share(float(wifi.mean()), 0)} are on {WIFI}, the others on {CELLULAR}.",
        data,
        {**_crowd(len(x)), "height": 340, "xaxis": _clients(len(x)), "yaxis": axis("Wh", rangemode="tozero")},
        keys,
        width=width_for(len(x)),
    )


def shown_round(journal: Sequence[RoundRecord]) -> RoundRecord | None:
    """The round to show in detail: the one in which most batteries became empty, or else the first with devices."""
    known = [record for record in journal if participants(record)]
    return max(known, key=lambda record: len(emptied(record)), default=None)  # of equals the first


def participants(record: RoundRecord) -> dict[int, DeviceRecord]:
    """The devices of clients that were sampled in a round; one with an empty battery had no work.

    Clients that took part in a survey only are excluded.
    """
    fleet = record.section(FleetRecord)
    if fleet is None:
        return {}
    sampled = {*record.sampled, *(one.client for one in record.failures)}
    nothing = DeviceRecord(before=0.0, after=0.0, compute=0.0, communication=0.0, background=0.0, seconds=0.0)
    return {client: device for client, device in fleet.devices.items() if client in sampled} | {
        client: nothing for client in emptied(record) if client not in fleet.devices
    }


def emptied(record: RoundRecord) -> list[int]:
    """Clients whose battery became empty in the round, or was empty before."""
    return [one.client for one in record.failures if one.reason == "battery"]


def battery_round(id: str, title: str, record: RoundRecord, fleet: Fleet, state: Tensors) -> Figure:
    """Initial, spent and remaining charge of each participant in one round; above, the spent energy alone."""
    tier, found, ended = state["tier"].numpy(), participants(record), emptied(record)
    # If there are too many, the emptiest ones are shown.
    kept = sorted(found, key=lambda client: (client not in ended, found[client].before))[:_MOST]
    order = sorted(kept, key=lambda client: (tier[client], client))
    x = [str(client) for client in order]
    hover = [
        f"client {client} ({label(fleet.order[tier[client]])}): {found[client].before:.3f} Wh before,"
        f" {found[client].spent:.4f} spent, {found[client].after:.3f} after"
        for client in order
    ]
    data: list[dict[str, Any]] = [
        _bars(x, [found[client].after for client in order], [colour(tier[client]) for client in order], hover),
        _bars(x, [found[client].spent for client in order], SPENT, hover),
        *(
            _bars(x, [getattr(found[client], kind) for client in order], tint, _told(found, order, kind), yaxis="y2")
            for kind, tint in KINDS.items()
        ),
    ]
    keys = [
        *(Key(f"left, {key.label}", key.colour, shape="box") for key in _tier_keys(fleet, state, order)),
        Key("spent", SPENT, shape="box"),
        *(Key(kind, tint, (2 + number,), shape="box") for number, (kind, tint) in enumerate(KINDS.items())),
    ]
    if crossed := [client for client in order if client in ended]:
        keys.append(Key("battery empty", ALARM, (len(data),), shape="symbol", symbol="x"))
        top = 0.05 * max(found[client]["before"] for client in order)
        y = [found[client]["before"] + top for client in crossed]
        data.append(_marks([str(client) for client in crossed], y, ALARM, "x", size=9))
    ran_out = (
        f"Batteries that ran out, or were flat before: {len(ended)}, of client{'s' if len(ended) > 1 else ''}"
        f" {_named(ended)}."
        if ended
        else "No battery ran out."
    )
    cut = f" The {_MOST} of {len(found)} with the least charge are drawn." if len(found) > len(order) else ""
    return Figure(
        id,
        title,
        f"Batteries of {count(len(found), 'participant')} before and after round {record.round}."
        f" {_by_tier(found, tier, fleet)} {ran_out}",
        f"Below: the whole bar is what a client had before round {record.round}, the coloured part what it had"
        f" left. Above, on a scale of its own: what it spent, by kind. {_by_tier(found, tier, fleet)} {ran_out}{cut}",
        data,
        {
            **_crowd(len(x)),
            "height": 430,
            "xaxis": _clients(len(x), categoryarray=x),
            "yaxis": axis("battery, Wh", rangemode="tozero", domain=[0, 0.58]),
            "yaxis2": axis("spent, Wh", rangemode="tozero", domain=[0.66, 1]),
        },
        keys,
        width=width_for(len(x)),
    )


def charge_by_tier(id: str, title: str, journal: Sequence[RoundRecord], fleet: Fleet, state: Tensors) -> Figure:
    """Mean charge of each tier after every round; round 0 is before the first."""
    full = levels(state)
    data: list[dict[str, Any]] = []
    keys: list[Key] = []
    told = []
    for name, own in members(fleet, state).items():
        number = fleet.order.index(name)
        points = [(0, float(full[own].mean()))]
        points += [(round, recorded.level[name]) for round, recorded in _fleets(journal).items()]
        keys.append(Key(name, colour(number), (len(data),), DASHES[dash(number)]))
        hover = f"{label(name)}, after round %{{x}}: %{{y:.1%}}<extra></extra>"
        data.append(curve(number, points, name=label(name), hovertemplate=hover))
        told.append(f"{name} from {share(points[0][1], 0)} to {share(points[-1][1], 0)}")
    return Figure(
        id,
        title,
        f"Mean charge of each tier after every round: {listed(told)}.",
        "How full batteries are, as a share of their capacity, mean over all devices of a tier whether they took part"
        f" or not; round 0 is before the first. By tier, {listed(told)}.",
        data,
        {
            "xaxis": whole_axis("round", len(journal)),
            "yaxis": axis("mean charge", tickformat=".0%", rangemode="tozero"),
        },
        keys,
    )


def energy_by_round(id: str, title: str, journal: Sequence[RoundRecord]) -> Figure:
    """The energy that all devices spent in a round, by kind."""
    fleets = _fleets(journal)
    sums = {
        kind: [sum(getattr(device, kind) for device in fleet.devices.values()) for fleet in fleets.values()]
        for kind in KINDS
    }
    x = list(fleets)
    total = sum(map(sum, sums.values()))
    told = [f"{_wh(sum(values))} of {kind}" for kind, values in sums.items()]
    drained, gained = (sum(getattr(fleet, way) for fleet in fleets.values()) for way in ("drained", "gained"))
    return Figure(
        id,
        title,
        f"Energy by round: over all rounds {listed(told)}.",
        f"What all devices together spent on their part in each round, surveys included: {_wh(total)} in all,"
        f" {listed(told)}. Between rounds the fleet also lost {_wh(drained)} to the background, and"
        f" {_wh(gained)} were charged.",
        [
            _bars(
                x,
                values,
                KINDS[kind],
                [f"round {at}: {value:.4f} Wh, {kind}" for at, value in zip(x, values, strict=True)],
            )
            for kind, values in sums.items()
        ],
        {
            "barmode": "stack",
            "bargap": 0.2,
            "xaxis": whole_axis("round", len(journal), showgrid=False),
            "yaxis": axis("Wh", rangemode="tozero"),
        },
        [Key(kind, tint, (number,), shape="box") for number, (kind, tint) in enumerate(KINDS.items())],
    )


def _fleets(journal: Sequence[RoundRecord]) -> dict[int, FleetRecord]:
    """The fleet's record by round."""
    found = {record.round: record.section(FleetRecord) for record in journal}
    return {round: fleet for round, fleet in found.items() if fleet is not None}


def _by_tier(found: Mapping[int, DeviceRecord], tier: np.ndarray, fleet: Fleet) -> str:
    told = []
    for number, name in enumerate(fleet.order):
        own = [work for client, work in found.items() if tier[client] == number]
        if own:
            before, after = (sum(getattr(work, at) for work in own) for at in ("before", "after"))
            told.append(f"{name} ({len(own)}) from {before:.2f} to {after:.2f} Wh")
    return f"By tier, {listed(told)}."


def _told(found: Mapping[int, DeviceRecord], order: Sequence[int], kind: str) -> list[str]:
    return [f"client {client}: {getattr(found[client], kind):.5f} Wh, {kind}" for client in order]


def _named(clients: Sequence[int]) -> str:
    return listed([str(client) for client in clients]) if len(clients) <= _TOLD else f"{clients[0]} and others"


def _wh(energy: float) -> str:
    """Energy in readable units.

    >>> _wh(12.345), _wh(0.04567), _wh(0.0)
    ('12.3\\xa0Wh', '0.0457\\xa0Wh', '0\\xa0Wh')
    """
    return f"{energy:.3g}\u00a0Wh" if energy < 1000 else f"{energy:,.0f}\u00a0Wh"


def _bars(x: Sequence[Any], y: Iterable[float], tint: Any, hover: Sequence[str], **more: Any) -> dict[str, Any]:
    return {
        "type": "bar",
        "x": list(x),
        "y": [float(value) for value in y],
        "marker": {"color": tint},
        "customdata": list(hover),
        "hovertemplate": "%{customdata}<extra></extra>",
        **more,
    }


def _marks(x: Sequence[Any], y: Sequence[float], tint: str, mark: str, size: int) -> dict[str, Any]:
    marker = {"color": tint, "symbol": mark, "size": size}
    return {"type": "scatter", "mode": "markers", "x": list(x), "y": list(y), "marker": marker, "hoverinfo": "skip"}


def _tier_keys(fleet: Fleet, state: Tensors, among: Sequence[int] | None = None) -> list[Key]:
    chosen = None if among is None else set(among)
    return [
        Key(name, colour(fleet.order.index(name)), shape="box")
        for name, own in members(fleet, state).items()
        if chosen is None or chosen & set(own.tolist())
    ]


def _crowd(clients: int) -> dict[str, Any]:
    return {"barmode": "stack", "bargap": 0.15 if clients <= _MOST else 0}


def _clients(clients: int, **more: Any) -> dict[str, Any]:
    return names_axis(title={"text": "client"}, showticklabels=clients <= MANY, **more)


def width_for(clients: int) -> int:
    """A width at which every client's number can be read, rotated if necessary."""
    return 60 + 12 * min(clients, MANY) if clients > 30 else 0
