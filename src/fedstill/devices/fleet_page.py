"""The page of a fleet: its devices, the cost of a round and, for a run, the state afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedstill.core.errors import InputError
from fedstill.core.numbers import count, size
from fedstill.core.task import Tensors
from fedstill.devices.fleet import Fleet
from fedstill.devices.fleet_facts import Left, RoundCost, RoundWorkload, TierFacts, costs, fleet_of, job_of, left, tiers
from fedstill.devices.fleet_figures import devices
from fedstill.devices.fleet_tables import costs_table, left_table, tiers_table
from fedstill.devices.report_section import run_figures
from fedstill.report.command import command
from fedstill.report.figure import Figure
from fedstill.report.page import PageSection
from fedstill.report.page_file import write_page
from fedstill.runtime.experiment import Experiment
from fedstill.runtime.plan import make_plan
from fedstill.runtime.result import Run


@dataclass(frozen=True)
class Described:
    """The description of a fleet, for a terminal and for a page."""

    experiment: Experiment
    fleet: Fleet
    state: Tensors  # before the first round
    tiers: Sequence[TierFacts]
    job: RoundWorkload | None
    costs: Sequence[RoundCost] = ()
    missing: str = ""  # why the cost of a round is unknown
    run: Run | None = None
    left: Sequence[Left] = ()

    @property
    def heading(self) -> str:
        held = self.experiment
        return f"{held.clients:,} devices of {held.method.name} on {held.data}, seed {held.seed}"

    @property
    def work(self) -> str:
        """The work of a device in a round, as text."""
        if self.job is None:
            return f"What a round costs is not known: {self.missing}."
        job = self.job
        return (
            f"{job.samples:,} samples (the mean), {count(job.epochs, 'epoch')} of {job.model},"
            f" {job.flops / 1e9:.3g} GFLOP, {size(job.down)} down and {size(job.up)} up"
        )


def described(experiment: Experiment, data_root: Path | None = None, run: Run | None = None) -> Described:
    """The fleet of an experiment; the cost of a round only if its data is present."""
    fleet, state = fleet_of(experiment)
    job, missing = None, ""
    try:
        plan = make_plan(experiment, data_root)
        experiment, job = plan.experiment, job_of(plan)
    except InputError as error:
        missing = str(error).rstrip(".")
    found = [] if job is None else costs(fleet, state, job)
    rest = [] if run is None else left(run)
    return Described(experiment, fleet, state, tiers(fleet, state), job, found, missing, run, rest)


def write_fleet_page(described: Described, path: Path) -> Path:
    """One self-contained HTML file that works offline."""
    rounds = 0 if described.run is None else len(described.run.journal)
    after = [] if described.run is None or not rounds else run_figures(described.run)
    return write_page(
        path,
        "page.html.jinja",
        [
            PageSection("fleet", "The fleet", _drawn(described, rounds), [tiers_table(described.tiers)]),
            PageSection(
                "costs",
                "What a round costs a device",
                tables=[costs_table(described.costs)] if described.costs else [],
                about=f"{described.work}.",
            ),
            PageSection(
                "after", f"After round {rounds}", after, [left_table(described.left)] if described.left else []
            ),
        ],
        heading=described.heading,
        summary=_summary(described),
        caution="Computed from counted operations and bytes, never measured on a device: powers, speeds and links are"
        " the fleet's settings.",
        command=command(described.experiment),
    )


def _drawn(described: Described, rounds: int) -> list[Figure]:
    fleet, state = described.fleet, described.state
    found = [devices("fleet", "Batteries before the first round", fleet, state)]
    if described.left and described.run is not None:
        found.append(devices("fleet-after", f"Batteries after round {rounds}", fleet, described.run.fleet))
    return found


def _summary(described: Described) -> list[str]:
    told = [f"{one.devices:,} {one.tier}" for one in described.tiers]
    held, full = (float(described.state[name].sum()) for name in ("charge", "capacity"))
    sentences = [f"The fleet has {', '.join(told)} devices, with {held:,.0f} of {full:,.0f} Wh before the first round."]
    if described.costs:
        dear = max(described.costs, key=lambda one: one.share)
        cheap = min(described.costs, key=lambda one: one.share)
        sentences.append(
            f"A round takes {100 * cheap.share:.2f} % of the battery of a {cheap.tier} device on {cheap.link}, and"
            f" {100 * dear.share:.2f} % of that of a {dear.tier} device on {dear.link}."
        )
    elif described.missing:
        sentences.append(described.work)
    return sentences
