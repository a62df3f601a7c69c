"""The report section about devices: dropout, batteries, clusters, for runs that have any of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fedstill.core.task import Tensors
from fedstill.devices.clusters import clusters_section
from fedstill.devices.dropout_curves import dropout_curves
from fedstill.devices.fleet import fleet_section
from fedstill.devices.fleet_facts import fleet_of, members
from fedstill.devices.fleet_figures import battery_round, charge_by_tier, energy_by_round, shown_round
from fedstill.devices.participation_figures import Groups, cluster_plane, failures_by_round, fairness
from fedstill.devices.study_figures import matters
from fedstill.report.extensions import RunSections, run_sections
from fedstill.report.facts import Facts
from fedstill.report.figure import Figure
from fedstill.report.page import PageSection
from fedstill.runtime.result import Run

_DRAWN = 4  # runs, with half a dozen figures each


def fleet_sections(runs: Mapping[str, Run], read: Sequence[Facts]) -> list[PageSection]:
    """The sections; empty if no run has any of these."""
    chosen = {title: run for title, run in runs.items() if matters(run.experiment) and run.journal}
    # Seeds are similar: the first one represents all.
    kinds = {run.experiment.model_dump_json(exclude={"seed"}): title for title, run in reversed(chosen.items())}
    drawn = [(title, run) for title, run in chosen.items() if title in kinds.values()][:_DRAWN]
    figures = [
        figure
        for number, (title, run) in enumerate(drawn)
        for figure in run_figures(run, f"-{number}", f", {title}" if len(chosen) > 1 else "")
    ]
    rest = len(chosen) - len(drawn)
    return [
        PageSection(
            "dropout",
            "What dropout costs",
            dropout_curves(read),
            about="Runs that differ in who is lost, what is done about it and the seed, and in nothing else.",
        ),
        PageSection(
            "devices",
            "Devices",
            figures,
            about=f"Of {len(chosen)} runs {len(drawn)} are drawn, one seed each: report on others to see them."
            if rest
            else "",
        ),
    ]


def run_figures(run: Run, number: str = "", of: str = "") -> list[Figure]:
    """One run's batteries, failures, fairness and clusters, as far as it has them."""
    experiment, journal, after = run.experiment, run.journal, run.fleet
    found: list[Figure] = []
    if fleet_section(experiment) is not None:
        fleet, start = fleet_of(experiment)
        if (record := shown_round(journal)) is not None:
            title = f"Batteries before and after round {record.round}{of}"
            found.append(battery_round(f"batteries{number}", title, record, fleet, start))
        found.append(charge_by_tier(f"charge{number}", f"Charge over time by tier{of}", journal, fleet, start))
        found.append(energy_by_round(f"energy{number}", f"Energy by round and kind{of}", journal))
    if any(record.failures for record in journal):
        found.append(failures_by_round(f"failures{number}", f"Failures by round and cause{of}", journal))
    groups, what = _groups(run, after)
    title = f"Who took part how often{of}"
    found.append(fairness(f"fairness{number}", title, journal, experiment.clients, groups, what))
    clusters = clusters_section(experiment)
    if clusters is not None and "cluster" in after and bool((after["cluster"] >= 0).any()):
        classes = run.config["classes"]
        title = f"Clusters in the plane of statistics{of}"
        found.append(cluster_plane(f"clusters{number}", title, clusters, after, classes))
    return found


def _groups(run: Run, after: Tensors) -> tuple[Groups, str]:
    """Clients by tier or, without tiers, by cluster."""
    if fleet_section(run.experiment) is not None:
        fleet, start = fleet_of(run.experiment)
        found = members(fleet, start)
        return {name: found[name].tolist() if name in found else [] for name in fleet.order}, "tier"
    if "cluster" in after:
        cluster = after["cluster"].numpy()
        return {str(one): np.flatnonzero(cluster == one).tolist() for one in range(int(cluster.max()) + 1)}, "cluster"
    return {}, ""


run_sections.register("devices")(RunSections("curves", fleet_sections))
