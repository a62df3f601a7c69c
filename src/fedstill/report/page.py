"""The page: everything it needs is in the one file, and its policy lets the browser fetch nothing else."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from platform import python_version

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from fedstill._version import __version__
from fedstill.core.errors import InputError
from fedstill.core.files import writable_folder, write_atomically
from fedstill.federation.result import Run
from fedstill.report import words
from fedstill.report.command import command
from fedstill.report.curves import curves
from fedstill.report.facts import Facts
from fedstill.report.figure import Figure
from fedstill.report.grids import attendance, partitions
from fedstill.report.shards import Table, partition_tables
from fedstill.report.table import results_table


@dataclass(frozen=True)
class Section:
    id: str
    title: str
    figures: list[Figure]


@dataclass(frozen=True)
class Recipe:
    """How to have a run again."""

    title: str
    command: str
    settings: str
    facts: dict[str, str]


def write_report(
    runs: Mapping[str, Run],
    path: Path,
    *,
    heading: str | None = None,
    tables: Mapping[str, Table] | None = None,
    data_root: Path | None = None,
) -> Path:
    """Compare finished runs, by title, in one HTML file that opens from disk without a network.

    `tables` say by title who has what; left out, they are cut again from the data where that is here
    (`data_root`), and an empty mapping leaves them out of the report.
    """
    if not runs:
        raise InputError("a report needs at least one run")
    if tables is None:
        tables = partition_tables(runs, data_root)
    read = [Facts.of(title, run) for title, run in runs.items()]
    writable_folder(path.parent)
    write_atomically(path, render(read, heading or words.heading(read), tables).encode())
    return path


def render(runs: Sequence[Facts], heading: str, tables: Mapping[str, Table]) -> str:
    """The page's text."""
    sections = [
        Section("curves", "How they went on", curves(runs)),
        Section("attendance", "Who took part when", attendance(runs)),
        Section("partitions", "Who has what", partitions(runs, tables)),
    ]
    specs = {figure.id: figure.spec() for section in sections for figure in section.figures}
    scripts = [get_plotlyjs(), _asset("figures.js"), _asset("tables.js")]
    return _template().render(
        heading=heading,
        summary=words.summary(runs),
        caution=words.caution(runs),
        table=results_table(runs),
        sections=[section for section in sections if section.figures],
        recipes=[_recipe(run) for run in runs],
        version=__version__,
        python=python_version(),
        style=Markup(_asset("report.css")),
        scripts=[Markup(script) for script in scripts],
        script_hashes=" ".join(f"'sha256-{_hash(script)}'" for script in scripts),
        specs=Markup(_embedded(specs)),
    )


def _recipe(run: Facts) -> Recipe:
    settings = yaml.safe_dump({"experiment": run.config["experiment"]}, sort_keys=False, allow_unicode=True)
    facts = {
        "sha256": run.result["sha256"],
        "data fingerprint": run.config["fingerprint"],
        "run": run.config["identity"],
        "made with": f"fedstill {run.config['fedstill']} (behaviour {run.config['behaviour']}),"
        f" torch {run.config['torch']}",
    }
    return Recipe(run.title, command(run.experiment), settings, facts)


def _embedded(content: object) -> str:
    """JSON that can stand in a script element: no `<` in it can end the element or begin another."""
    return json.dumps(content, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _hash(script: str) -> str:
    return b64encode(sha256(script.encode()).digest()).decode()


def _asset(name: str) -> str:
    return files("fedstill.report").joinpath("assets", name).read_text(encoding="utf-8")


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("fedstill.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.jinja")
