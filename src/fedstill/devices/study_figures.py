"""Study metrics of runs with dropout or batteries: accuracy, failures by cause, energy, and participation.

Accuracy is the mean over the last few evaluations: a single one is mostly chance if many clients fail.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import fmean

import numpy as np

from fedstill.core.records import RoundRecord
from fedstill.devices.fleet_record import FleetRecord, devices_in
from fedstill.runtime.experiment import Experiment, choose
from fedstill.runtime.result import Run
from fedstill.studies.extensions import FiguresOf, Finished, PlannedRun, StudyFigures, study_figures
from fedstill.studies.run_figures import Figures

PREFIX, REACHED = "fleet.", "rounds_to."
LAST = 5  # evaluations whose accuracy is averaged
TARGETS = (50, 60, 70, 80, 85, 90, 95)  # percent
_PARTS = ("dropout", "mitigation")


def matters(experiment: Experiment) -> bool:
    """Whether a run has any of these metrics."""
    sections = (experiment.section(name) for name in ("fleet", "clusters"))
    return any(one is not None for one in sections) or experiment.dropout.name != "none"


def undisturbed(experiment: Experiment) -> bool:
    """Whether there is neither dropout nor dropout mitigation."""
    return all(getattr(experiment, part) == choose(part, "none") for part in _PARTS)


def calm(experiment: Experiment) -> str:
    """The settings that a run shares with its counterpart without dropout."""
    return experiment.model_dump_json(exclude=set(_PARTS))


def figures_of_devices(run: Run, quiet: Run | None = None) -> Figures:
    """The metrics that a study stores; `quiet` is the same run without dropout, to measure its cost."""
    if not matters(run.experiment):
        return {}
    journal = run.journal
    causes = Counter(one.reason for record in journal for one in record.failures)
    attended = attendance(journal, run.experiment.clients)
    figures: Figures = {
        "accuracy": tail(journal),
        "cost": None if quiet is None else _difference(tail(quiet.journal), tail(journal)),
        "dropped": causes["dropped"],
        "battery": causes["battery"],
        "skipped": sum(record.skipped is not None for record in journal),
        "replacements": sum(len(record.replacements or {}) for record in journal),
        "jain": jain(attended),
        **_of_batteries(journal),
        **_of_groups(run, attended),
    }
    named = {f"{PREFIX}{name}": None if value is None else round(float(value), 6) for name, value in figures.items()}
    return {**named, **{f"{REACHED}{target}": rounds_to(journal, target / 100) for target in TARGETS}}


def tail(journal: Sequence[RoundRecord]) -> float | None:
    """The mean test accuracy of the last evaluations."""
    found = [record.accuracy for record in journal if record.accuracy is not None]
    return fmean(found[-LAST:]) if found else None


def rounds_to(journal: Sequence[RoundRecord], target: float) -> int | None:
    """The number of rounds until an accuracy was reached; None: never."""
    found = (record.round for record in journal if record.accuracy is not None and record.accuracy >= target)
    return next(found, None)


def attendance(journal: Sequence[RoundRecord], clients: int) -> np.ndarray:
    """The number of rounds in which the reply of each client was accepted."""
    counts = np.zeros(clients)
    for record in journal:
        counts[list(record.accepted)] += 1
    return counts


def jain(counts: np.ndarray) -> float | None:
    """Jain's fairness index: 1 if all values are equal, 1/n if one has everything; None for an empty or zero list.

    >>> jain(np.array([2, 2, 2])), jain(np.array([3, 0, 0])), jain(np.array([0, 0]))
    (1.0, 0.3333333333333333, None)
    """
    squares = float(np.square(counts).sum())
    return float(counts.sum()) ** 2 / (len(counts) * squares) if squares else None


def _of_batteries(journal: Sequence[RoundRecord]) -> Figures:
    """Watt-hours of a sampled client in a round; and the final charge of batteries."""
    fleets = [fleet for record in journal if (fleet := record.section(FleetRecord)) is not None]
    if not fleets:
        return {}
    works = [
        device
        for record in journal
        for client, device in devices_in(record).items()
        if client in record.sampled  # others took part in a survey only
    ]
    kinds = ("compute", "communication", "background")
    means = {kind: fmean(getattr(work, kind) for work in works) if works else 0.0 for kind in kinds}
    return {"energy": sum(means.values()), **means, "level": fmean(fleets[-1].level.values())}


def _of_groups(run: Run, attended: np.ndarray) -> Figures:
    """Fairness between tiers of devices and between clusters: Jain's index of their clients' mean participation."""
    figures: Figures = {}
    for name, column in (("tiers", "tier"), ("clusters", "cluster")):
        if column in run.fleet:
            groups = run.fleet[column].numpy()
            figures[f"jain_{name}"] = jain(np.array([attended[groups == one].mean() for one in np.unique(groups)]))
    return figures


def _difference(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else before - after


def _figures(planned: Sequence[PlannedRun]) -> FiguresOf:
    """Each run with dropout beside its counterpart without dropout."""
    peaceful = {
        calm(one.job.experiment): one.job
        for one in planned
        if matters(one.job.experiment) and undisturbed(one.job.experiment)
    }

    def figures(one: PlannedRun, run: Run, finished: Finished) -> Figures:
        experiment = one.job.experiment
        if not matters(experiment):
            return {}
        quiet = peaceful.get(calm(experiment)) if experiment.dropout.name != "none" else None
        return figures_of_devices(run, None if quiet is None else finished(quiet))

    return figures


study_figures.register("devices")(
    StudyFigures(
        _figures,
        {
            "fleet.accuracy": ("mean test accuracy of the last five evaluations", "%", 100),
            "fleet.cost": ("what dropout costs of that", "%", 100),
            "fleet.dropped": ("failures by dropout", "", 1),
            "fleet.battery": ("failures by empty batteries", "", 1),
            "fleet.skipped": ("rounds skipped", "", 1),
            "fleet.replacements": ("replacement clients", "", 1),
            "fleet.jain": ("fairness between clients: Jain's index of rounds attended", "", 1),
            "fleet.jain_tiers": ("the same between tiers of devices", "", 1),
            "fleet.jain_clusters": ("the same between clusters", "", 1),
            "fleet.energy": ("energy of a client's round", "Wh", 1),
            "fleet.compute": ("of that for computing", "Wh", 1),
            "fleet.communication": ("of that for the link", "Wh", 1),
            "fleet.background": ("of that in the background", "Wh", 1),
            "fleet.level": ("how full batteries are in the end, mean of tiers", "%", 100),
        },
    )
)
