"""The table of results: each cell has a text to read and a value to sort and to save."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fedstill.core.numbers import MISSING, duration, share, size
from fedstill.report import describe
from fedstill.report.facts import Facts


@dataclass(frozen=True)
class Cell:
    text: str
    value: str | float | None


@dataclass(frozen=True)
class Column:
    name: str  # what stands above it
    key: str  # what it is called in the CSV file
    cell: Callable[[Facts], Cell]
    right: bool = True
    always: bool = True  # False: left out where no run has anything in it


@dataclass(frozen=True)
class Table:
    id: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]


def results_table(runs: Sequence[Facts]) -> Table:
    columns = tuple(
        column for column in _COLUMNS if column.always or any(column.cell(run).value not in (None, 0) for run in runs)
    )
    rows = tuple(tuple(column.cell(run) for column in columns) for run in runs)
    return Table("results", "Every run, one line each", columns, rows)


def _text(text: str) -> Cell:
    return Cell(text, text)


def _count(value: int) -> Cell:
    return Cell(f"{value:,}", value)


def _share(value: float | None) -> Cell:
    return Cell(share(value), value)


def _traffic(run: Facts, way: str) -> Cell:
    if run.pooled:
        return Cell(MISSING, None)
    return Cell(size(run.result["bytes"][way]), run.result["bytes"][way])


def _personal(run: Facts, name: str) -> Cell:
    held: dict[str, Any] = run.result["personal"]
    mean, spread = held.get("mean" if name == "" else f"{name}_mean"), held.get("std" if name == "" else f"{name}_std")
    if mean is None or spread is None:
        return Cell(MISSING, None)
    return Cell(f"{100 * mean:.1f}\u00a0±\u00a0{share(spread, 1)}", mean)


_COLUMNS = (
    Column("Way", "way", lambda run: _text(run.title), right=False),
    Column("Method", "method", lambda run: _text(run.experiment.method.name), right=False),
    Column("Partition", "partition", lambda run: _text(describe.part(run.experiment.partition)), right=False),
    Column("Clients", "clients", lambda run: _count(run.experiment.clients)),
    Column("Rounds", "rounds", lambda run: _count(run.result["rounds"])),
    Column("Last accuracy", "accuracy_last", lambda run: _share(run.accuracy())),
    Column("Best accuracy", "accuracy_best", lambda run: _share(run.accuracy("best"))),
    Column("Selected accuracy", "accuracy_selected", lambda run: _share(run.accuracy("selected")), always=False),
    Column("Class accuracy", "class_accuracy_last", lambda run: _share(run.class_accuracy())),
    Column("Own models, all classes", "personal_mean", lambda run: _personal(run, ""), always=False),
    Column("Own models, own mix", "personal_own_mean", lambda run: _personal(run, "own"), always=False),
    Column("Sent up", "bytes_up", lambda run: _traffic(run, "up")),
    Column("Sent down", "bytes_down", lambda run: _traffic(run, "down")),
    Column("Replies lost", "lost", lambda run: _count(run.result["lost"])),
    Column("Rounds skipped", "skipped", lambda run: _count(run.result["skipped"]), always=False),
    Column("Time", "seconds", lambda run: Cell(duration(run.seconds), round(run.seconds, 3))),
    Column("sha256", "sha256", lambda run: Cell(run.result["sha256"][:12], run.result["sha256"]), right=False),
)
