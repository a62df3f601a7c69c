"""A run's metrics beside accuracy on the screen: with intervals, by round, and by site."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedstill.cli.screen import table
from fedstill.core.errors import InputError
from fedstill.core.numbers import listed, share

if TYPE_CHECKING:  # help need not wait for torch
    from fedstill.core.record_base import Number
    from fedstill.runtime.result import Run

_MOST_SITES = 20  # lines of a table
_OF_SITES = ("accuracy", "balanced_accuracy", "f1", "auc", "calibration_error")


def measured_rounds(run: Run, metric: str | None, usual: str) -> tuple[str, dict[int, float | None]]:
    """What a metric is called, and its value by round; without a name, the one that ranks rounds."""
    from fedstill.runtime.round_ranking import TITLES, check_metric_name

    journal = run.journal
    if metric is None:
        return usual, {record.round: record.accuracy for record in journal}
    chosen = check_metric_name(metric)
    if journal and not any(chosen in record.metrics for record in journal):
        known = sorted({name for record in journal for name in record.metrics} & set(TITLES))
        has = f"it has {listed(known)}" if known else "it has none"
        raise InputError(f"the run {run.path} has no {chosen}: {has}")
    return TITLES[chosen], {record.round: record.metrics.get(chosen) for record in journal}


def show_metrics(run: Run) -> None:
    """Of the last model: with intervals where the run kept them; and of each site that was evaluated."""
    evaluation = next((one.evaluation for one in reversed(run.journal) if one.evaluation is not None), None)
    further = None if evaluation is None else evaluation.further
    if further is None:
        return
    kept = run.metrics.get("last")
    rows = [
        (_title(name), share(value), _interval(kept.intervals.get(name) if kept else None))
        for name, value in further.test.items()
    ]
    heads = ("last model", "", "95 % interval") if kept else ("last model", "")
    table("", heads, [row[: len(heads)] for row in rows], right=(1, 2))
    if further.sites:
        names = [name for name in _OF_SITES if all(name in one for one in further.sites.values())]
        lines = [(str(site), *(share(one[name]) for name in names)) for site, one in further.sites.items()]
        table("", ("site", *map(_title, names)), lines[:_MOST_SITES], right=range(1, len(names) + 1))


def _title(name: str) -> str:
    from fedstill.runtime.round_ranking import TITLES

    return TITLES.get(name, name)


def _interval(limits: tuple[Number, Number] | None) -> str:
    return "" if limits is None else f"{share(limits[0])} to {share(limits[1])}"
