"""Who has what: the tables of clients in simulated runs, cut again from their data."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from fedstill.core.dataset import has_boxes
from fedstill.core.errors import InputError
from fedstill.data.point_labels import has_point_labels, kind_names, shape_kinds
from fedstill.runtime.plan import make_plan
from fedstill.runtime.result import Run

_log = logging.getLogger(__name__)

# What shards follow from, beside the data itself. A validation share is cut before them, or with `on-site` after.
_CUT = {"data", "partition", "clients", "seed", "validation", "evaluation"}


@dataclass(frozen=True)
class Holdings:
    """Samples by client (rows) and class; where every point has a label, whole clouds by the kind of thing they show,
    which is what partitions go by; of scenes, boxes by class."""

    counts: list[list[int]]
    names: tuple[str, ...]  # of the columns
    by: Literal["class", "kind", "box"] = "class"
    sizes: list[int] = field(default_factory=list)  # of clients: their sums, unless one sample counts several times
    overlap: bool = False  # some samples lie with several clients
    sites: tuple[str, ...] = ()  # names of clients, where they are sites

    def __post_init__(self) -> None:
        if not self.sizes:
            object.__setattr__(self, "sizes", [sum(row) for row in self.counts])


def partition_tables(runs: Mapping[str, Run], data_root: Path | None = None) -> dict[str, Holdings]:
    """Who has what, for the runs whose data is here and has not changed.

    A partition follows from data, seed and settings, so it need not be kept with the run. Data that is elsewhere is
    no error: the report then goes without that picture.
    """
    known: dict[tuple[str, str], Holdings | None] = {}
    found: dict[str, Holdings] = {}
    for title, run in runs.items():
        experiment = run.experiment
        if experiment.clients < 2:
            continue
        cut = experiment.model_dump_json(include=_CUT), run.config["fingerprint"]
        if cut not in known:
            known[cut] = _table(run, data_root)
        table = known[cut]
        if table is not None:
            found[title] = table
    return found


def _table(run: Run, data_root: Path | None) -> Holdings | None:
    try:
        plan = make_plan(run.experiment, data_root)
    except InputError:
        _log.info("the report leaves out the partition of %s", run.path, exc_info=True)
        return None
    if plan.fingerprint != run.config["fingerprint"]:
        return None
    shards, data = plan.clients.shards, plan.clients.data
    sizes, overlap = shards.sizes().tolist(), len(shards.order.unique()) < len(shards.order)
    labels = data.labels()
    if labels is not None and has_boxes(data):
        counts = shards.table(labels, len(plan.bundle.classes))
        return Holdings(counts.tolist(), plan.bundle.classes, "box", sizes, overlap)
    names = kind_names(plan.bundle)
    counts = shards.table(shape_kinds(data), len(names))
    by: Literal["class", "kind"] = "kind" if has_point_labels(plan.bundle.train) else "class"
    titles = plan.bundle.site_names if plan.experiment.partition.name == "sites" else ()
    return Holdings(counts.tolist(), names, by, sizes, overlap, titles)
