"""The page about some runs: what came out, how they went on, and how to have them again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from os.path import relpath
from pathlib import Path
from urllib.parse import quote

import yaml

from fedstill.core.errors import InputError
from fedstill.core.numbers import MISSING, capital, count, duration, share, size
from fedstill.core.table import Cell, Column, Table, make_table, percent, text, whole
from fedstill.report import descriptions, opening
from fedstill.report.classes import classes_section
from fedstill.report.command import SERVER, command, is_deployed
from fedstill.report.curves import curves
from fedstill.report.extensions import run_sections
from fedstill.report.facts import Facts, measured
from fedstill.report.grids import attendance, partitions
from fedstill.report.metric_section import metrics_section
from fedstill.report.page import PageSection
from fedstill.report.page_file import write_page
from fedstill.report.seed_curves import loss_over_seeds, seed_curves
from fedstill.report.shards import Holdings, partition_tables
from fedstill.report.words import RUNS, glossary
from fedstill.runtime.result import Run
from fedstill.runtime.round_ranking import LOWER_IS_BETTER
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
    metric: str = ACCURACY,
) -> Path:
    """Compare finished runs, by title, in one HTML file that opens from disk without a network.

    Into the folder `figures`, if there is one, go the figures as SVG and PNG files. `metric` is what curves and tables
    show; if it is another than accuracy, the best run comes first.

    `tables` say by title who has what; left out, they are cut again from the data where that is here
    (`data_root`), and an empty mapping leaves them out of the report.
    """
    if not runs:
        raise InputError("a report needs at least one run")
    if tables is None:
        tables = partition_tables(runs, data_root)
    read = _ordered([replace(Facts.of(title, run), shown=metric) for title, run in runs.items()], metric)
    sections = [
        PageSection("results", "Results", tables=[results_table(read)], about=_missing_references(read)),
        *_added(runs, read, "results"),
        PageSection("curves", "How they went on", [*seed_curves(read), *loss_over_seeds(read), *curves(read)]),
        *_added(runs, read, "curves"),
        metrics_section(runs),
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
        run_cautions=opening.run_cautions(read),
        repetitions=[_repetition(run, runs[run.title], path) for run in read],
        server=SERVER if any(is_deployed(run.experiment) for run in read) else "",
    )


def _ordered(runs: list[Facts], metric: str) -> list[Facts]:
    """As they were given or, by another metric than accuracy, the best first; runs that do not have it are refused."""
    if metric == ACCURACY:
        return runs
    if silent := [run.title for run in runs if run.accuracy() is None]:
        raise InputError(f"{silent[0]} has no {metric}: leave --metric out, or this run")
    return sorted(runs, key=lambda run: run.accuracy() or 0.0, reverse=metric not in LOWER_IS_BETTER)


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
    sites = dict.fromkeys(site for run in runs for site in run.result.by_site or ())
    by_site = tuple(Column(f"At {site}", f"site_{site}", partial(_at_site, site)) for site in sites)
    return make_table("results", "Every run, one line each", (*_columns(measured(runs)), *by_site), runs)


def _at_site(site: str, run: Facts) -> Cell:
    """Accuracy on the test samples of one site."""
    metrics = (run.result.by_site or {}).get(site)
    return percent(None if metrics is None else metrics["accuracy"])


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


def _reference(run: Facts) -> Cell:
    """What the run is to be held against, where that is here."""
    held = run.reference
    if held is None or held.accuracy is None:
        return Cell(MISSING, None)
    return Cell(f"{share(held.accuracy)} ({held.kind})", held.accuracy)


def _missing_references(runs: Sequence[Facts]) -> str:
    """How to get what runs are to be held against: the first of several commands, which often differ in the seed."""
    said = list(dict.fromkeys(run.missing for run in runs if run.missing is not None))
    if not said:
        return ""
    what, _, first = said[0].partition(": ")
    more = f" and {count(len(said) - 1, 'command')} more like it" if len(said) > 1 else ""
    return f"{capital(what)}: `{first}`{more}."


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
        Column("Held against", "reference", _reference, right=True, always=False),
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
