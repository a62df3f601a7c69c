"""The table of runs."""

from __future__ import annotations

from collections.abc import Sequence

from fedstill.core.numbers import MISSING, duration, share, size
from fedstill.core.table import Cell, Column, Table, make_table, percent, text, whole
from fedstill.report import descriptions
from fedstill.report.facts import Facts, measured
from fedstill.tasks.measures import ACCURACY


def results_table(runs: Sequence[Facts]) -> Table:
    return make_table("results", "Every run, one line each", _columns(measured(runs)), runs)


def _traffic(run: Facts, way: str) -> Cell:
    if run.pooled:
        return Cell(MISSING, None)
    sent = run.result.bytes.up if way == "up" else run.result.bytes.down
    return Cell(size(sent), sent)


def _personal(run: Facts, name: str) -> Cell:
    personal = run.result.personal
    if personal is None:
        return Cell(MISSING, None)
    mean, spread = (personal.mean, personal.std) if name == "" else (personal.own_mean, personal.own_std)
    return Cell(f"{100 * mean:.1f}\u00a0±\u00a0{share(spread, 1)}", mean)


def _class_accuracy(run: Facts) -> Cell:
    """Of detectors it is their mAP once more."""
    return percent(None if run.detects else run.class_accuracy)


def _columns(measure: str) -> tuple[Column[Facts], ...]:
    return (
        Column("Way", "way", lambda run: text(run.title), right=False),
        Column("Method", "method", lambda run: text(run.experiment.method.name), right=False),
        Column("Partition", "partition", lambda run: text(descriptions.part(run.experiment.partition)), right=False),
        Column("Clients", "clients", lambda run: whole(run.experiment.clients)),
        Column("Rounds", "rounds", lambda run: whole(run.result.rounds)),
        Column(f"Last {measure}", "accuracy_last", lambda run: percent(run.accuracy())),
        Column(f"Best {measure}", "accuracy_best", lambda run: percent(run.accuracy("best"))),
        Column(f"Selected {measure}", "accuracy_selected", lambda run: percent(run.accuracy("selected")), always=False),
        Column("Class accuracy", "class_accuracy_last", _class_accuracy, always=ACCURACY in measure),
        Column("Own models, all classes", "personal_mean", lambda run: _personal(run, ""), always=False),
        Column("Own models, own mix", "personal_own_mean", lambda run: _personal(run, "own"), always=False),
        Column("Sent up", "bytes_up", lambda run: _traffic(run, "up")),
        Column("Sent down", "bytes_down", lambda run: _traffic(run, "down")),
        Column("Failures", "failures", lambda run: whole(run.result.failures)),
        Column("Rounds skipped", "skipped", lambda run: whole(run.result.skipped), always=False),
        Column("Time", "seconds", lambda run: Cell(duration(run.seconds), round(run.seconds, 3))),
        Column("sha256", "sha256", lambda run: Cell(run.result.sha256[:12], run.result.sha256), right=False),
    )
