"""Runs beside each other: what they differ in, what came out, and their curves."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from shutil import get_terminal_size
from typing import Any

from matplotlib.figure import Figure

from fedstill.core.errors import InputError
from fedstill.core.frames import data_frame
from fedstill.core.notebook import html_table, panel
from fedstill.core.numbers import MISSING, capital, count, duration, size
from fedstill.core.table import Cell, Column, Table, make_table, percent, text
from fedstill.core.terminal_table import terminal_text
from fedstill.report.facts import number
from fedstill.report.named_runs import run_folders
from fedstill.report.paired import paired_sentence
from fedstill.report.run_plots import plot_runs
from fedstill.report.titles import differing_settings, setting_text, settings_in_titles, titles
from fedstill.runtime.result import Run
from fedstill.runtime.run_folder import RunFolder
from fedstill.tasks.task_choice import measure_of

RunInput = str | Path | Run
_Row = dict[str, Any]
_MOST_SETTINGS = 10  # in one cell


def compare(runs: RunInput | Sequence[RunInput] | Mapping[str, RunInput]) -> Comparison:
    """Compare runs, finished or not: objects, folders, folders that hold runs, or a mapping from names to runs.

    >>> import fedstill
    >>> given = {"clients": 2, "rounds": 1, "model": "mlp", "out": getfixture("tmp_path")}
    >>> runs = {"plain": fedstill.run("fedavg", **given), "proximal": fedstill.run("fedprox", **given)}
    >>> comparison = fedstill.compare(runs)
    >>> comparison["method"], comparison["rounds"]
    (['fedavg', 'fedprox'], [1, 1])
    """
    if isinstance(runs, Mapping):
        return Comparison({str(name): Run.of(run) for name, run in runs.items()})
    several = [runs] if isinstance(runs, str | Path | Run) else list(runs)
    found = [run for one in several for run in _runs(one)]
    experiments = [run.experiment for run in found]
    names = titles(experiments, [run.path.name for run in found])
    return Comparison(dict(zip(names, found, strict=True)), settings_in_titles(experiments))


def _runs(named: RunInput) -> list[Run]:
    if isinstance(named, Run):
        return [named]
    folders = run_folders([Path(named)])
    if not folders:
        raise InputError(f"there is no run in {named}")
    return [Run(folder) for folder in folders]


class Comparison:
    """Some runs by name: `rows` as mappings, a column by its name, a table, a figure."""

    def __init__(self, runs: Mapping[str, Run], in_names: Collection[str] = ()) -> None:
        if not runs:
            raise InputError("a comparison needs at least one run")
        self.runs = dict(runs)
        self._in_names = in_names  # settings that the names tell already

    @cached_property
    def settings(self) -> dict[str, dict[str, Any]]:
        """By name, the settings in which the runs differ, other than the number of rounds."""
        each = differing_settings([run.experiment for run in self.runs.values()])
        for one in each:
            one.pop("rounds", None)
        return dict(zip(self.runs, each, strict=True))

    @property
    def differences(self) -> list[str]:
        """The settings that differ, by path."""
        return list(next(iter(self.settings.values())))

    @cached_property
    def rows(self) -> list[_Row]:
        """One row for each run: its name, the settings that differ, and figures."""
        return [{"name": name, **self.settings[name], **self._figures(run)} for name, run in self.runs.items()]

    def _figures(self, run: Run) -> _Row:
        journal = run.journal
        measured = [score for record in journal if (score := number(record.accuracy)) is not None]
        last, best = (measured[-1], max(measured)) if measured else (None, None)
        return {
            "rounds": len(journal),
            "accuracy": number(run.accuracy) if run.finished else last,
            "best_accuracy": number(run.best_accuracy) if run.finished else best,
            "bytes_up": sum(record.bytes.up for record in journal),
            "bytes_down": sum(record.bytes.down for record in journal),
            "seconds": run.seconds,
            "note": "; ".join(self._notes(run)),
        }

    def _notes(self, run: Run) -> list[str]:
        rounds = run.config.get("rounds", run.experiment.rounds)
        return [*([] if run.finished else [f"not finished: {rounds} rounds in all"]), *self._other_scores(run)]

    def _other_scores(self, run: Run) -> list[str]:
        """Why its accuracy cannot be compared with that of the first run."""
        first_name, first = next(iter(self.runs.items()))
        reasons = []
        if run.config["fingerprint"] != first.config["fingerprint"]:
            reasons.append(f"not the data of {first_name}")
        measure = measure_of(run.experiment.architectures[0])
        if measure != measure_of(first.experiment.architectures[0]):
            reasons.append(f"its accuracy is {measure}")
        return reasons

    def __getitem__(self, column: str) -> list[Any]:
        """A column, in the order of the runs."""
        return [row[column] for row in self.rows]

    def __len__(self) -> int:
        return len(self.runs)

    def best(self) -> str | None:
        """The finished run with a model whose last accuracy is highest, of those with one score on the same data.

        None where the runs have other data or another measure than the first, or where no run is such.
        """
        incomparable = any(self._other_scores(run) for run in self.runs.values())
        ended = {
            name: run
            for name, run in self.runs.items()
            if run.finished and RunFolder(run.path).model_path("last").is_file()
        }
        scores = {name: score for name, run in ended.items() if (score := number(run.accuracy)) is not None}
        return max(scores, key=lambda name: scores[name]) if scores and not incomparable else None

    def verdict(self) -> str | None:
        """Of two runs with predictions for the same test samples, what these tell; otherwise None."""
        if len(self.runs) != 2:
            return None
        first, second = self.runs.values()
        truth = first.test_labels
        said = first.predictions(), second.predictions()
        if truth is None or truth != second.test_labels or said[0] is None or said[1] is None:
            return None
        if first.config["fingerprint"] != second.config["fingerprint"]:
            return None
        one, other = self.runs
        return paired_sentence((one, other), (said[0], said[1]), truth)

    def to_pandas(self) -> Any:
        """The rows as a `pandas.DataFrame`, by name; needs `pip install 'fedstill[pandas]'`."""
        return data_frame(self.rows, list(self.rows[0])).set_index("name")

    def plot(self) -> Figure:
        """A matplotlib figure of all runs' test accuracy and training loss over the rounds; notebooks show it."""
        return plot_runs(self.runs)

    def table(self, width: int | None = None, *, settings_shown: bool = False) -> Table:
        """What is shown; settings get one column together where the table would be wider than `width`.

        They get none where they are shown elsewhere.
        """
        told = set(self._in_names) | (set(self.differences) if settings_shown else set())
        settings = [path for path in self.differences if path not in told]
        wide = make_table("comparison", "", [_NAME, *map(_setting, settings), *_FIGURES], self.rows)
        if width is None or wide.width <= width or len(settings) < 2:
            return wide
        return make_table("comparison", "", [_NAME, _together(settings), *_FIGURES], self.rows)

    def __str__(self) -> str:
        width = get_terminal_size().columns
        return terminal_text(self.table(width), width)

    def __repr__(self) -> str:
        return f"Comparison({count(len(self), 'run')}: {'; '.join(self.runs)})"

    def _repr_html_(self) -> str:
        return panel(capital(f"{count(len(self), 'run')}"), {}, html_table(self.table()))


def _shown(value: Any) -> str:
    return MISSING if value is None or value == [] else f"{value:g}" if isinstance(value, float) else str(value)


def _setting(path: str) -> Column[_Row]:
    name = path.rpartition(".")[2].replace("_", " ")
    return Column(capital(name), path, lambda row: text(_shown(row[path])), right=False)


def _together(paths: Sequence[str]) -> Column[_Row]:
    def cell(row: _Row) -> Cell:
        told = [words for path in paths if (words := setting_text(path, row[path]))]
        more = [f"{len(told) - _MOST_SETTINGS} more"] if len(told) > _MOST_SETTINGS else []
        return text(", ".join([*told[:_MOST_SETTINGS], *more]))

    return Column("Settings", "settings", cell, right=False)


def _sent(row: _Row) -> Cell:
    sent = row["bytes_up"] + row["bytes_down"]
    return Cell(size(sent), sent)


_NAME: Column[_Row] = Column("Run", "name", lambda row: text(row["name"]), right=False)
_FIGURES: tuple[Column[_Row], ...] = (
    Column("Rounds", "rounds", lambda row: Cell(str(row["rounds"]), row["rounds"])),
    Column("Last", "accuracy", lambda row: percent(row["accuracy"])),
    Column("Best", "best_accuracy", lambda row: percent(row["best_accuracy"])),
    Column("Sent", "bytes", _sent),
    Column("Time", "seconds", lambda row: Cell(duration(row["seconds"]), row["seconds"])),
    Column("Note", "note", lambda row: text(row["note"]), right=False, always=False),
)
