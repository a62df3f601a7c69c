"""Facts about a fleet: its tiers, the cost of a round for each kind of device, and its state after a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np

from fedstill.core.errors import InputError
from fedstill.core.records import RoundRecord
from fedstill.core.streams import Streams
from fedstill.core.task import Tensors
from fedstill.devices.energy import Energy
from fedstill.devices.fleet import Fleet, fleet_section
from fedstill.devices.fleet_record import DeviceRecord, devices_in
from fedstill.devices.study_figures import attendance
from fedstill.methods import methods
from fedstill.participation.round_participation import TRAINED
from fedstill.participation.weighted import levels
from fedstill.runtime.egress_manifest import first_round
from fedstill.runtime.experiment import Experiment
from fedstill.runtime.plan import Plan
from fedstill.runtime.result import Run

WIFI, CELLULAR = "Wi-Fi", "3G"
_ENOUGH = 200  # devices of a kind that are averaged: more would not change the mean, and fleets can be large

Span = tuple[float, float]  # from the lowest to the highest


@dataclass(frozen=True)
class TierFacts:
    """The devices of a tier before the first round."""

    tier: str
    devices: int
    capacity: Span  # Wh
    watts: Span
    speed: Span  # GFLOP/s
    charge: Span  # of the capacity
    wifi: float  # share of them


@dataclass(frozen=True)
class RoundWorkload:
    """The work of a round for a client with the mean number of samples that is sampled for the first time."""

    model: str
    samples: int
    epochs: int
    flops: float  # of all its training, in the first exchange
    transfers: tuple[tuple[int, int], ...]  # bytes down and up, by exchange

    @property
    def down(self) -> int:
        return sum(down for down, _ in self.transfers)

    @property
    def up(self) -> int:
        return sum(up for _, up in self.transfers)


@dataclass(frozen=True)
class RoundCost:
    """The mean cost of a workload for one tier and link: Wh, the fraction of the capacity, and the duration."""

    tier: str
    link: str
    devices: int
    download: float
    training: float
    upload: float
    background: float
    share: float
    seconds: float


@dataclass(frozen=True)
class Left:
    """The state of a tier after this many rounds."""

    tier: str
    devices: int
    before: float  # mean charge as a share of the capacity, before the first round
    after: float
    flat: int  # devices without any charge
    attended: float  # mean number of rounds in which their reply was accepted
    spent: float | None  # mean Wh in a round in which they worked; None: none did


def fleet_of(experiment: Experiment) -> tuple[Fleet, Tensors]:
    """An experiment's fleet, and its state before the first round, as the run itself draws it."""
    if methods[experiment.method.name].pooled:
        raise InputError(f"{experiment.method.name} has all data in one place: there is no fleet to show")
    fleet = fleet_section(experiment)
    if fleet is None:
        raise InputError(
            f"this experiment has no fleet: the clients of {experiment.method.name} on {experiment.data} have power"
            " without end unless it sets fleet={}"
        )
    return fleet, fleet.start(experiment.clients, Streams(experiment.seed).at("fleet"))


def tiers(fleet: Fleet, state: Tensors) -> list[TierFacts]:
    """The tiers that have devices."""
    level, wifi = levels(state), state["wifi"].numpy()

    def span(values: np.ndarray) -> Span:
        return float(values.min()), float(values.max())

    return [
        TierFacts(
            name,
            len(own),
            span(state["capacity"].numpy()[own]),
            span(state["watts"].numpy()[own]),
            span(state["speed"].numpy()[own]),
            span(level[own]),
            float(wifi[own].mean()),
        )
        for name, own in members(fleet, state).items()
    ]


def members(fleet: Fleet, state: Tensors) -> dict[str, np.ndarray]:
    """Clients by tier, for tiers that have any."""
    tier = state["tier"].numpy()
    found = {name: np.flatnonzero(tier == number) for number, name in enumerate(fleet.order)}
    return {name: own for name, own in found.items() if len(own)}


def job_of(plan: Plan) -> RoundWorkload:
    """Bytes of whole messages, as they would be sent; `fedstill egress` shows those of the tensors in them."""
    samples = round(fmean(who.samples for who in plan.profiles))
    who = replace(plan.profiles[0], samples=samples)
    server = plan.method.start(plan.streams)
    steps = list(first_round(plan, plan.method.exchanges(server, 0), server, who))
    transfers = tuple((step.request.nbytes, step.expected().nbytes) for step in steps)
    epochs, passes = plan.participants.epochs, plan.participants.costs[who.architecture]
    return RoundWorkload(who.architecture, samples, epochs, TRAINED * samples * epochs * passes, transfers)


def costs(fleet: Fleet, state: Tensors, job: RoundWorkload) -> list[RoundCost]:
    """The costs for every existing combination of tier and link."""
    wifi, found = state["wifi"].numpy(), []
    for tier, own in members(fleet, state).items():
        for link, there in ((WIFI, own[wifi[own]]), (CELLULAR, own[~wifi[own]])):
            if len(there):
                found.append(_cost(fleet, state, job, tier, link, there))
    return found


def _cost(fleet: Fleet, state: Tensors, job: RoundWorkload, tier: str, link: str, own: np.ndarray) -> RoundCost:
    looked_at = own[:_ENOUGH]
    spent = [_spent(fleet, state, job, int(client)) for client in looked_at]
    capacity = state["capacity"].numpy()[looked_at]
    return RoundCost(
        tier,
        link,
        len(own),
        fmean(one.download.own for one in spent),
        fmean(one.training.own for one in spent),
        fmean(one.upload.own for one in spent),
        fmean(one.background for one in spent),
        fmean(one.total / full for one, full in zip(spent, capacity, strict=True)),
        fmean(one.seconds for one in spent),
    )


def _spent(fleet: Fleet, state: Tensors, job: RoundWorkload, client: int) -> Energy:
    """As a run charges it: each exchange is a download and an upload of its own, with the offsets of both."""
    work = (job.flops, *[0.0] * (len(job.transfers) - 1))
    return Energy.sum(
        fleet.spent(state, client, down, flops, up) for (down, up), flops in zip(job.transfers, work, strict=True)
    )


def left(run: Run) -> list[Left]:
    """Every tier after the last round; empty if the run has no stored state."""
    fleet, start = fleet_of(run.experiment)
    after = run.fleet
    if "charge" not in after:
        return []
    journal = run.journal
    before, now, attended = levels(start), levels(after), attendance(journal, run.experiment.clients)
    tier, taken = start["tier"].numpy(), works(journal)
    return [
        Left(
            name,
            len(own),
            float(before[own].mean()),
            float(now[own].mean()),
            int((now[own] <= 0).sum()),
            float(attended[own].mean()),
            _mean([work.spent for client, work in taken if tier[client] == tier[own[0]]]),
        )
        for name, own in members(fleet, start).items()
    ]


def works(journal: Sequence[RoundRecord]) -> list[tuple[int, DeviceRecord]]:
    """The work of devices, round by round: client, and its energy."""
    return [(client, device) for record in journal for client, device in devices_in(record).items()]


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None
