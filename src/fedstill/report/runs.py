"""The page about some runs: what came out, how they went on, and how to have them again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os.path import relpath
from pathlib import Path
from urllib.parse import quote

import yaml

from fedstill.core.errors import InputError
from fedstill.core.numbers import MISSING, duration, share, size
from fedstill.core.table import Cell, Column, Table, make_table, percent, text, whole
from fedstill.report import descriptions, opening
from fedstill.report.classes import classes_section
from fedstill.report.command import command
from fedstill.report.curves import curves
from fedstill.report.extensions import run_sections
from fedstill.report.facts import Facts, measured
from fedstill.report.grids import attendance, partitions
from fedstill.report.page import PageSection
from fedstill.report.page_file import write_page
from fedstill.report.shards import Holdings, partition_tables
from fedstill.report.words import RUNS, glossary
from fedstill.runtime.result import Run
from fedstill.tasks.task_choice import ACCURACY


@dataclass(frozen=True)
class Repetition:
    """How to have a run again."""

    title: str
    command: str
    settings: str
    facts: dict[str, str]
    folder: str  # of the run, as a link from the page


def write_report(
    runs: Mapping[str, Run],
    path: Path,
    *,
    tables: Mapping[str, Holdings] | None = None,
    data_root: Path | None = None,
    figures: Path | None = None,
) -> Path:
    """Compare finished runs, by title, in one HTML file that opens from disk without a network.

    Into the folder `figures`, if there is one, go the figures as SVG and PNG files.

    `tables` say by title who has what; left out, they are cut again from the data where that is here
    (`data_root`), and an empty mapping leaves them out of the report.
    """
    if not runs:
        raise InputError("a report needs at least one run")
    if tables is None:
        tables = partition_tables(runs, data_root)
    read = [Facts.of(title, run) for title, run in runs.items()]
    sections = [
        PageSection("results", "Results", tables=[results_table(read)]),
        *_added(runs, read, "results"),
        PageSection("curves", "How they went on", curves(read)),
        *_added(runs, read, "curves"),
        classes_section(runs),
        PageSection("attendance", "Who took part when", attendance(read)),
        PageSection("partitions", "Who has what", partitions(read, tables)),
        glossary(RUNS),
    ]
    return write_page(
        path,
        "runs.html.jinja",
        sections,
        figures,
        heading=opening.heading(read),
        summary=opening.summary(read),
        caution=opening.caution(read),
        repetitions=[_repetition(run, runs[run.title], path) for run in read],
    )


def _added(runs: Mapping[str, Run], read: Sequence[Facts], after: str) -> list[PageSection]:
    """The sections that slices bring for this place."""
    added = [run_sections[name] for name in run_sections]
    return [section for one in added if one.after == after for section in one.make(runs, read)]


def _repetition(run: Facts, found: Run, page: Path) -> Repetition:
    settings = yaml.safe_dump({"experiment": run.config["experiment"]}, sort_keys=False, allow_unicode=True)
    facts = {
        "sha256": run.result.sha256,
        "data fingerprint": run.config["fingerprint"],
        "run": run.config["identity"],
        "made with": f"fedstill {run.config['fedstill']} (behaviour {run.config['behaviour']}),"
        f" torch {run.config['torch']}",
    }
    folder = Path(relpath(found.path.resolve(), page.parent.resolve())).as_posix()
    return Repetition(run.title, command(run.experiment), settings, facts, f"{quote(folder)}/")


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


def _recalibrated(run: Facts) -> Cell:
    """Of shared models with BatchNorm, where it was measured."""
    return percent(None if run.result.batchnorm is None else run.result.batchnorm.recalibrated)


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
        Column("Last, BatchNorm re-estimated", "recalibrated", _recalibrated, always=False),
        Column("Own models, all classes", "personal_mean", lambda run: _personal(run, ""), always=False),
        Column("Own models, own mix", "personal_own_mean", lambda run: _personal(run, "own"), always=False),
        Column("Sent up", "bytes_up", lambda run: _traffic(run, "up")),
        Column("Sent down", "bytes_down", lambda run: _traffic(run, "down")),
        Column("Failures", "failures", lambda run: whole(run.result.failures)),
        Column("Rounds skipped", "skipped", lambda run: whole(run.result.skipped), always=False),
        Column("Time", "seconds", lambda run: Cell(duration(run.seconds), round(run.seconds, 3))),
        Column("sha256", "sha256", lambda run: Cell(run.result.sha256[:12], run.result.sha256), right=False),
    )
