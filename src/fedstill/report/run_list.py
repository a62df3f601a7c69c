"""The runs in a folder as a list: filtered, sorted, and named by what they differ in."""

from __future__ import annotations

import logging
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from shutil import get_terminal_size
from typing import Any

from fedstill.core.errors import InputError, did_you_mean
from fedstill.core.files import size_on_disk
from fedstill.core.frames import data_frame
from fedstill.core.notebook import html_table, panel
from fedstill.core.numbers import MISSING, count, size
from fedstill.core.settings import ALIASES
from fedstill.core.table import Cell, Column, Table, make_table, percent, text
from fedstill.core.terminal_table import terminal_text
from fedstill.report.facts import number
from fedstill.report.named_runs import run_folders
from fedstill.report.titles import all_settings, titles
from fedstill.runtime.result import Run
from fedstill.runtime.run_state import State, run_state

FIGURES = {
    "run": "name of the folder",
    "state": "finished, unfinished, being worked on or cannot be read",
    "rounds": "rounds that are committed",
    "accuracy": "test accuracy after the last round, as a share",
    "best": "the highest test accuracy of a round",
    "bytes": "size on disk",
    "seconds": "time that its rounds took",
    "changed": "when it was last written to, in seconds since 1970",
}
_CONDITION = re.compile(r"\s*([\w.-]+?)\s*(<=|>=|!=|=|<|>)\s*(.*?)\s*")
_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_NOTHING = ("none", "unset", "")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ListedRun:
    """One run: where it is, its figures, and its settings by path; none of them where it cannot be read."""

    path: Path
    figures: Mapping[str, Any]
    settings: Mapping[str, Any]
    what: str = ""  # its title among the runs for which the conditions hold, also those beyond the limit

    @property
    def state(self) -> State:
        state: State = self.figures["state"]
        return state


def runs(
    folders: str | Path | Sequence[str | Path] = "runs",
    *,
    where: Sequence[str] = (),
    sort: str = "changed",
    reverse: bool = False,
    limit: int | None = None,
) -> RunList:
    """List runs: those for which all conditions hold, by a figure (highest first) or a setting.

    Conditions compare a figure or a setting with a value: `method=fedavg`, `accuracy>=0.9`, `training.rate<0.1`,
    `state!=finished`. A setting may be named without its section where only one has that name.

    >>> import fedstill
    >>> given = {"clients": 2, "rounds": 1, "model": "mlp", "out": getfixture("tmp_path")}
    >>> for method in ("fedavg", "fedprox"):
    ...     made = fedstill.run(method, **given)
    >>> found = fedstill.runs(getfixture("tmp_path"), where=["method=fedprox"])
    >>> [run.experiment.method.name for run in found]
    ['fedprox']
    """
    if limit is not None and limit < 1:
        raise InputError(f"a limit must be at least 1, not {limit}")
    several = [folders] if isinstance(folders, str | Path) else list(folders)
    places = [Path(folder) for folder in several]
    for place in places:
        if not place.is_dir():
            raise InputError(f"there is no folder {place}: name the folder that holds the runs")
    every = [_listed(folder) for folder in run_folders(places)]
    for condition in where:
        every = _filtered(every, condition)
    return RunList(_sorted(_titled(every), sort, reverse)[:limit])


class RunList:
    """Runs in an order: iterate over it to get them as objects, or print it."""

    def __init__(self, listed: Sequence[ListedRun]) -> None:
        self.listed = list(listed)

    def __len__(self) -> int:
        return len(self.listed)

    def __getitem__(self, place: int) -> Run:
        return Run(self.listed[place].path)

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """One row for each run: what it is, its folder, and its figures."""
        return [{"what": one.what, "folder": str(one.path), **one.figures} for one in self.listed]

    def to_pandas(self) -> Any:
        """The rows as a `pandas.DataFrame`; needs `pip install 'fedstill[pandas]'`."""
        return data_frame(self.rows, ["what", "folder", *FIGURES])

    def table(self, columns: Sequence[str] = (), width: int | None = None) -> Table:
        """What is shown, with columns for further settings.

        Wider than `width`, runs have short names; then figures are left out, so that there is room for what runs are.
        """
        wanted = [(name, [_value(one, _path(name, self.listed)) for one in self.listed]) for name in columns]
        rows = [row | {"column": {name: each[place] for name, each in wanted}} for place, row in enumerate(self.rows)]
        more = [_column(name) for name, _ in wanted]
        unfinished = any(one.state != "finished" for one in self.listed)
        words = [_WHAT, *more, *([_STATE] if unfinished else [])]
        made = make_table("runs", "", [_RUN, *words, *_NUMBERS], rows)
        if width is None or made.width <= width:
            return made
        for left_out in range(len(_SPARE) + 1):
            figures = [column for column in _NUMBERS if column.key not in _SPARE[:left_out]]
            made = make_table("runs", "", [_SHORT, *words, *figures], rows)
            what = made.widths[1]
            if made.width - max(0, what - _ROOM) <= width:
                break
        return made

    def __str__(self) -> str:
        width = get_terminal_size().columns
        return terminal_text(self.table(width=width), width)

    def __repr__(self) -> str:
        return f"RunList({count(len(self), 'run')})"

    def _repr_html_(self) -> str:
        return panel(count(len(self), "run"), {}, html_table(self.table()))


def _listed(folder: Path) -> ListedRun:
    state = run_state(folder)
    figures: dict[str, Any] = dict.fromkeys(FIGURES)
    figures |= {"run": folder.name, "state": state, "bytes": size_on_disk([folder]), "changed": _changed(folder)}
    if state == "cannot be read":
        return ListedRun(folder, figures, {})
    run = Run(folder)
    try:
        settings = all_settings(run.experiment)
        measured = [score for record in run.journal if (score := number(record.accuracy)) is not None]
        figures |= {
            "rounds": len(run.journal),
            "accuracy": number(run.accuracy) if run.finished else measured[-1] if measured else None,
            "best": max(measured, default=number(run.best_accuracy) if run.finished else None),
            "seconds": run.seconds,
        }
    except (
        InputError
    ) as error:  # settings of a plugin that is not here, or a damaged journal: it is listed all the same
        _log.info("%s cannot be read: %s", folder, error)
        return ListedRun(folder, figures | {"state": "cannot be read"}, {})
    return ListedRun(folder, figures, settings)


def _changed(folder: Path) -> float:
    latest = 0.0
    for file in folder.iterdir():
        if file.is_file() and file.name != ".lock":
            with suppress(FileNotFoundError):  # a run that goes on replaces its files
                latest = max(latest, file.stat().st_mtime)
    return latest


def _titled(listed: Sequence[ListedRun]) -> list[ListedRun]:
    readable = [one for one in listed if one.settings]
    names = titles([Run(one.path).experiment for one in readable], [one.path.name for one in readable])
    named = dict(zip((one.path for one in readable), names, strict=True))
    return [ListedRun(one.path, one.figures, one.settings, named.get(one.path, MISSING)) for one in listed]


def _path(name: str, listed: Sequence[ListedRun]) -> str:
    """What a name means: a figure, or a setting that some run has, by its path or by the end of it."""
    if name in FIGURES:
        return name
    known = dict.fromkeys(path for one in listed for path in one.settings)
    word = ".".join(ALIASES.get(part, part) for part in name.split("."))
    if word in known:
        return word
    ending = [path for path in known if path.endswith(f".{word}")]
    if len(ending) == 1:
        return ending[0]
    if ending:
        raise InputError(f"{name!r} may be {', '.join(ending)}: name the section, too")
    if not known:
        return word
    raise InputError(f"no run has a setting or figure {name!r}: {did_you_mean(name, [*FIGURES, *known])}")


def _value(one: ListedRun, path: str) -> Any:
    return one.figures[path] if path in FIGURES else one.settings.get(path)


def _filtered(listed: list[ListedRun], condition: str) -> list[ListedRun]:
    parsed = _CONDITION.fullmatch(condition)
    if parsed is None:
        raise InputError(f"cannot read the condition {condition!r}: write e.g. method=fedavg or 'accuracy>=0.9'")
    name, sign, wanted = parsed.groups()
    path = _path(name, listed)
    return [one for one in listed if _holds(_value(one, path), sign, wanted)]


def _holds(value: Any, sign: str, wanted: str) -> bool:
    """Whether a value compares to what was typed: as numbers where both are, else as words.

    >>> _holds(0.94, ">=", "90%"), _holds("iid", "!=", "iid"), _holds(None, "<", "3"), _holds(True, "=", "true")
    (True, False, False, True)
    """
    if value is None or value == [] or wanted.lower() in _NOTHING:
        nothing = value is None or value == []
        return {"=": nothing, "!=": not nothing}.get(sign, False) if wanted.lower() in _NOTHING else sign == "!="
    figure = _figure(wanted)
    if figure is not None and isinstance(value, int | float) and not isinstance(value, bool):
        return _OPERATORS[sign](float(value), figure)
    if sign not in ("=", "!="):
        raise InputError(f"{value!r} and {wanted!r} are not both numbers: compare them with = or !=")
    return _OPERATORS[sign](str(value).lower(), wanted.lower())


def _figure(typed: str) -> float | None:
    share = typed.endswith("%")
    try:
        figure = float(typed.removesuffix("%"))
    except ValueError:
        return None
    return figure / 100 if share else figure


def _sorted(listed: list[ListedRun], name: str, reverse: bool) -> list[ListedRun]:
    """By a figure with the highest first, by a setting or a word with the lowest; runs without it come last."""
    path = _path(name, listed)
    there = [one for one in listed if _value(one, path) is not None]
    numeric = all(isinstance(_value(one, path), int | float) for one in there)
    there.sort(key=lambda one: one.path.name)
    there.sort(
        key=lambda one: _value(one, path) if numeric else str(_value(one, path)),
        reverse=(numeric and path in FIGURES) != reverse,
    )
    return there + [one for one in listed if _value(one, path) is None]


def _column(name: str) -> Column[dict[str, Any]]:
    def cell(row: dict[str, Any]) -> Cell:
        value = row["column"][name]
        return text(MISSING if value is None else f"{value:g}" if isinstance(value, float) else str(value))

    return Column(name, name, cell, right=False)


def short_name(run: str) -> str:
    """The beginning of a run's digest, by which commands find it, too.

    >>> short_name("fedavg-digits-6f1c2d3e4f5a6b7c")
    '6f1c2d3e'
    """
    return run.rpartition("-")[2][:8]


def _when(row: dict[str, Any]) -> Cell:
    """The day, without its year in the present one, and the time."""
    when = datetime.fromtimestamp(row["changed"])
    day = f"{when:%m-%d %H:%M}" if when.year == datetime.now().year else f"{when:%Y-%m-%d}"
    return Cell(day.replace(" ", "\u00a0"), row["changed"])


_RUN: Column[dict[str, Any]] = Column("Run", "run", lambda row: text(row["run"]), right=False)
_SHORT: Column[dict[str, Any]] = Column("Run", "run", lambda row: text(short_name(row["run"])), right=False)
_WHAT: Column[dict[str, Any]] = Column("What", "what", lambda row: text(row["what"]), right=False)
_STATE: Column[dict[str, Any]] = Column("State", "state", lambda row: text(row["state"]), right=False)
_NUMBERS: tuple[Column[dict[str, Any]], ...] = (
    Column("Rounds", "rounds", lambda row: Cell(str(row["rounds"] or 0), row["rounds"])),
    Column("Last", "accuracy", lambda row: percent(row["accuracy"])),
    Column("Best", "best", lambda row: percent(row["best"])),
    Column("Size", "bytes", lambda row: Cell(size(row["bytes"]), row["bytes"])),
    Column("Changed", "changed", _when),
)
_SPARE = ("changed", "bytes", "rounds", "best")  # what a narrow list does without, in this order
_ROOM = 32  # characters that it should have for what a run is
