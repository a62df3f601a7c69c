"""`fedstill runs`: the runs in a folder; and runs beside each other, for `fedstill show`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from fedstill.cli.options import Json, Plugin, one_of
from fedstill.cli.screen import console, print_json, print_table, sparkline, table
from fedstill.core.numbers import MISSING, count, share

if TYPE_CHECKING:
    from fedstill.report.comparison import Comparison

_SORTED = ("changed", "accuracy", "best", "rounds", "bytes", "seconds", "run", "state")
_MOST_COLUMNS = 4  # runs that stand side by side in a terminal


def runs(
    folders: Annotated[
        list[Path] | None, typer.Argument(help="Folders that hold runs; default: runs.", metavar="FOLDER...")
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option("--where", help="A condition, e.g. method=fedavg or 'accuracy>=0.9'; repeatable."),
    ] = None,
    sort: Annotated[
        str,
        typer.Option(
            "--sort",
            help="A figure (highest first) or a setting, e.g. accuracy, best, bytes or training.rate.",
            autocompletion=one_of(*_SORTED),
        ),
    ] = "changed",
    reverse: Annotated[bool, typer.Option("--reverse", help="Sort the other way round.")] = False,
    limit: Annotated[int | None, typer.Option("--limit", help="List at most this many.")] = None,
    column: Annotated[
        list[str] | None, typer.Option("--column", help="Also show a setting, e.g. training.rate; repeatable.")
    ] = None,
    plugin: Plugin = None,
    json: Json = False,
) -> None:
    """List runs with their figures; filter and sort them."""
    from fedstill.core.plugins import use_plugins
    from fedstill.report.run_list import runs as list_runs

    use_plugins(plugin or [])
    found = list_runs(folders or "runs", where=where or (), sort=sort, reverse=reverse, limit=limit)
    if json:
        settings = [dict(one.settings) for one in found.listed]
        print_json({"runs": [row | {"settings": own} for row, own in zip(found.rows, settings, strict=True)]})
        return
    if not found.listed:
        console.print("no runs" + (" for which these conditions hold" if where else ""))
        return
    print_table(found.table(column or (), console.width))


def show_comparison(folders: Sequence[Path], as_json: bool, metric: str | None = None) -> None:
    """Runs beside each other: settings that differ, figures, curves on one scale, and what the test samples tell."""
    from fedstill.report.comparison import compare

    compared = compare(list(folders))
    if as_json:
        print_json({"runs": compared.rows, "verdict": compared.verdict()})
        return
    print_table(compared.table(console.width, settings_shown=_show_settings(compared)))
    if metric is not None:
        _show_metric(compared, metric)
    else:
        _show_metrics(compared)
    _show_curves(compared)
    if verdict := compared.verdict():
        console.print(verdict, soft_wrap=True)
    for name, run in compared.runs.items():
        console.print(f"{name}: {run.path}", soft_wrap=True)
    if (best := compared.best()) is not None:
        command = f"fedstill export {quote(str(compared.runs[best].path))} model.onnx"
        console.print(f"the model of {best}: {command}", soft_wrap=True, markup=False, highlight=False)


def _show_metrics(compared: Comparison) -> None:
    """All metrics of the last evaluated rounds, a row each, while the runs fit side by side."""
    from fedstill.runtime.round_ranking import TITLES

    last = [next((one.metrics for one in reversed(run.journal) if one.metrics), {}) for run in compared.runs.values()]
    names = [name for name in TITLES if name != "accuracy" and any(name in one for one in last)]
    if names and len(last) <= _MOST_COLUMNS:
        rows = [
            (TITLES[name], *(_metric_text(name, one[name]) if name in one else MISSING for one in last))
            for name in names
        ]
        console.print()
        table("", ("metric", *compared.runs), rows, right=range(1, len(last) + 1))


def _metric_text(name: str, value: float) -> str:
    """
    >>> _metric_text("loss", 0.5)
    '0.5000'
    """
    return f"{value:.4f}" if name == "loss" else share(value)  # all others are shares


def _show_metric(compared: Comparison, metric: str) -> None:
    """Another metric than accuracy after the last evaluated round, the best run first."""
    from fedstill.runtime.round_ranking import LOWER_IS_BETTER, TITLES, check_metric_name

    name = check_metric_name(metric)
    last = {
        title: [one.metrics[name] for one in run.journal if name in one.metrics] for title, run in compared.runs.items()
    }
    known = sorted(
        ((values[-1], title) for title, values in last.items() if values), reverse=name not in LOWER_IS_BETTER
    )
    table("", ("run", TITLES[name]), [(title, _metric_text(name, value)) for value, title in known], right=(1,))


def _show_settings(compared: Comparison) -> bool:
    """The settings that differ, a row each, while the runs fit side by side; gives whether they do."""
    names = list(compared.runs)
    if not compared.differences:
        console.print(f"{count(len(names), 'run')} with equal settings")
    if not compared.differences or len(names) > _MOST_COLUMNS:
        return False
    table("", ("setting", *names), _setting_rows([compared.settings[name] for name in names]))
    console.print()
    return True


def _setting_rows(settings: Sequence[Mapping[str, object]]) -> list[tuple[str, ...]]:
    """A row for each setting; a section that only some runs have is one row.

    >>> without = {"seed": 1, "fleet.volts": None, "fleet.hours": None}
    >>> _setting_rows([{"seed": 0, "fleet.volts": 3.85, "fleet.hours": 0.25}, without])
    [('seed', '0', '1'), ('fleet', '2 settings', '–')]
    """
    sections: dict[str, list[str]] = {}
    for path in settings[0]:
        sections.setdefault(path.partition(".")[0], []).append(path)
    rows: list[tuple[str, ...]] = []
    for section, paths in sections.items():
        given = [sum(one[path] is not None for path in paths) for one in settings]
        if len(paths) > 1 and 0 in given:
            rows.append((section, *(f"{number} settings" if number else MISSING for number in given)))
        else:
            rows += [(path, *(_shown(one[path]) for one in settings)) for path in paths]
    return rows


def _shown(value: object) -> str:
    return MISSING if value is None or value == [] else f"{value:g}" if isinstance(value, float) else str(value)


def _show_curves(compared: Comparison) -> None:
    curves = {
        name: [record.accuracy for record in run.journal if record.accuracy is not None]
        for name, run in compared.runs.items()
    }
    every = [value for curve in curves.values() for value in curve]
    if not every:
        return
    low, high = min(every), max(every)
    console.print()
    wide = max(map(len, curves))
    for name, curve in curves.items():
        room = max(10, console.width - wide - 22)
        end = share(curve[-1]) if curve else MISSING
        console.print(f"{name:{wide}}  {sparkline(curve, room, low, high)}  {end}", soft_wrap=True)
    console.print(f"each from {share(low)} to {share(high)}\n")
