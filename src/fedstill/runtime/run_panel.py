"""A run as notebooks show it."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING

from fedstill.core.notebook import panel
from fedstill.core.numbers import MISSING, duration, share, size
from fedstill.tasks.task_choice import measure_of

if TYPE_CHECKING:
    from fedstill.runtime.result import Run


def run_panel(run: Run) -> str:
    """Method and data, how far the run is, what came out, what was sent, and where it is kept."""
    experiment, journal = run.experiment, run.journal
    measure = measure_of(experiment.architectures[0])
    rounds = f"{len(journal)} of {run.config.get('rounds', experiment.rounds)}"
    facts = {
        "model": ", ".join(dict.fromkeys(experiment.architectures)),
        "clients": f"{experiment.clients}, {experiment.partition.name}",
        "rounds": rounds if run.finished else f"{rounds}: not finished, run it again to resume",
    }
    if run.finished:
        facts[measure] = f"{_share(run.accuracy)} after the last round, {_share(run.best_accuracy)} in the best"
    elif journal:
        facts[measure] = f"{share(journal[-1].accuracy)} so far"
    up, down = (sum(getattr(record.bytes, way) for record in journal) for way in ("up", "down"))
    facts |= {"sent": f"{size(up)} up, {size(down)} down", "time": duration(run.seconds), "folder": str(run.path)}
    return panel(f"{experiment.method.name} on {experiment.data}", facts)


def _share(value: float) -> str:
    return share(value) if isfinite(value) else MISSING
