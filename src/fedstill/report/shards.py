"""Who has what: the tables of clients in simulated runs, cut again from their data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedstill.core.errors import InputError
from fedstill.data.parts import has_point_labels, kind_names, shape_kinds
from fedstill.federation.plan import make_plan
from fedstill.federation.result import Run


@dataclass(frozen=True)
class Table:
    """Samples by client (rows) and class; where every point has a label, whole clouds by the kind of thing they show,
    which is what partitions go by."""

    counts: list[list[int]]
    names: tuple[str, ...]  # of the columns
    by: Literal["class", "kind"] = "class"


def partition_tables(runs: Mapping[str, Run], data_root: Path | None = None) -> dict[str, Table]:
    """Who has what, for the runs whose data is here and has not changed.

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
    if plan.fingerprint != run.config["fingerprint"]:
        return None
    names = kind_names(plan.bundle)
    counts = plan.clients.shards.table(shape_kinds(plan.clients.data), len(names))
    return Table(counts.tolist(), names, "kind" if has_point_labels(plan.bundle.train) else "class")
