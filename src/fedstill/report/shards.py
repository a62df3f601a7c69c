"""Who has what: the clients x classes tables of simulated runs, cut again from their data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fedstill.core.errors import InputError
from fedstill.federation.plan import make_plan
from fedstill.federation.result import Run

Table = list[list[int]]


def partition_tables(runs: Mapping[str, Run], data_root: Path | None = None) -> dict[str, Table]:
    """Samples by client and class, for the runs whose data is here and has not changed.

    A partition follows from data, seed and settings, so it need not be kept with the run. Data that is elsewhere is
    no error: the report then goes without that picture.
    """
    known: dict[str, Table | None] = {}
    found: dict[str, Table] = {}
    for title, run in runs.items():
        experiment = run.experiment
        if experiment.clients < 2:
            continue
        cut = experiment.model_dump_json(include={"data", "partition", "clients", "seed", "validation"})
        if cut not in known:
            known[cut] = _table(run, data_root)
        table = known[cut]
        if table is not None:
            found[title] = table
    return found


def _table(run: Run, data_root: Path | None) -> Table | None:
    try:
        plan = make_plan(run.experiment, data_root)
    except InputError:
        return None
    labels = plan.clients.data.labels()
    if labels is None or labels.ndim != 1 or plan.bundle.fingerprint() != run.config["fingerprint"]:
        return None
    counts: Table = plan.clients.shards.table(labels, len(plan.bundle.classes)).tolist()
    return counts
