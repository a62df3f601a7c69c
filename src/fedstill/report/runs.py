"""The page about some runs: what came out, how they went on, and how to have them again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from fedstill.core.errors import InputError
from fedstill.report import opening
from fedstill.report.command import command
from fedstill.report.curves import curves
from fedstill.report.extensions import run_sections
from fedstill.report.facts import Facts
from fedstill.report.grids import attendance, partitions
from fedstill.report.page import PageSection
from fedstill.report.page_file import write_page
from fedstill.report.runs_table import results_table
from fedstill.report.shards import Holdings, partition_tables
from fedstill.runtime.result import Run


@dataclass(frozen=True)
class Repetition:
    """How to have a run again."""

    title: str
    command: str
    settings: str
    facts: dict[str, str]


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
        PageSection("attendance", "Who took part when", attendance(read)),
        PageSection("partitions", "Who has what", partitions(read, tables)),
    ]
    return write_page(
        path,
        "runs.html.jinja",
        sections,
        figures,
        heading=opening.heading(read),
        summary=opening.summary(read),
        caution=opening.caution(read),
        repetitions=[_repetition(run) for run in read],
    )


def _added(runs: Mapping[str, Run], read: Sequence[Facts], after: str) -> list[PageSection]:
    """The sections that slices bring for this place."""
    added = [run_sections[name] for name in run_sections]
    return [section for one in added if one.after == after for section in one.make(runs, read)]


def _repetition(run: Facts) -> Repetition:
    settings = yaml.safe_dump({"experiment": run.config["experiment"]}, sort_keys=False, allow_unicode=True)
    facts = {
        "sha256": run.result.sha256,
        "data fingerprint": run.config["fingerprint"],
        "run": run.config["identity"],
        "made with": f"fedstill {run.config['fedstill']} (behaviour {run.config['behaviour']}),"
        f" torch {run.config['torch']}",
    }
    return Repetition(run.title, command(run.experiment), settings, facts)
