"""Following runs: each round once, in every tracker, whatever becomes of the trackers.

The journal is what counts. A tracker that follows a run says which steps it has; the rounds of the journal after these
are logged, so that a run that was killed, or is computed again from an earlier checkpoint, has every round once.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import fedstill.tracking.mlflow_tracker
import fedstill.tracking.tensorboard_tracker
import fedstill.tracking.wandb_tracker  # noqa: F401  # the three register themselves
from fedstill.core.errors import InputError
from fedstill.core.records import RoundRecord
from fedstill.tracking.flat_metrics import round_metrics
from fedstill.tracking.tracker import METHODS, Status, TrackedRun
from fedstill.tracking.tracker_registry import package, trackers

_log = logging.getLogger(__name__)

TrackInput = Any  # a name, an object, or a sequence of them; checked by `tracking`
KEPT = ("config.json", "result.json", "metrics.json")  # files of a run that are kept beside its models
Tell = Callable[[str], None]
_MADE_WITH = ("identity", "fingerprint", "fedstill", "torch", "cpu")
_LONGEST = 300  # characters of an error in a warning


class Tracking:
    """The trackers of a command or call; one that fails is left out from then on, and `tell` gets a sentence."""

    def __init__(self, chosen: Sequence[tuple[str, Any]], tell: Tell) -> None:
        self.active, self.tell = dict(enumerate(chosen)), tell

    def prepare(self, out: Path) -> None:
        """Refuse, before any work, what is not installed or cannot be written."""
        for name, tracker in self.active.values():
            try:
                _call(tracker, "prepare", out)
            except InputError:
                raise
            except Exception as error:
                raise InputError(f"the tracker {name} cannot be used: {_sentence(error)}") from error

    def call(self, number: int, method: str, *given: Any) -> Any:
        """Call one of the trackers, unless it has failed before; one that raises is not called again."""
        if number not in self.active:
            return None
        name, tracker = self.active[number]
        try:
            return _call(tracker, method, *given)
        except Exception as error:
            del self.active[number]
            _log.info("the tracker %s failed", name, exc_info=True)  # `tell` warns
            self.tell(
                f"the tracker {name} failed ({_sentence(error)}): the work goes on without it;"
                " the same command adds what is missing later"
            )
            return None


class RunFollower:
    """An observer of a run that hands its rounds to trackers."""

    def __init__(self, tracking: Tracking, run: TrackedRun) -> None:
        self.tracking, self.run = tracking, run
        self.last: dict[int, int] = {}  # by tracker, the last step that it has

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """A step, for the trackers that do not have it."""
        self._open()
        for number, last in self.last.items():
            if step > last:
                self.tracking.call(number, "log", self.run, step, metrics)
                self.last[number] = step

    def catch_up(self, journal: Sequence[RoundRecord]) -> None:
        """Log the rounds of a journal that trackers do not have."""
        self._open()
        for record in journal:
            if any(record.round > last for last in self.last.values()):
                self.log(record.round, round_metrics(record))

    def finished(self, folder: Path, journal: Sequence[RoundRecord]) -> None:
        """The run in that folder is complete: whatever trackers lack of it is added."""
        self.catch_up(journal)
        self.save(run_files(folder))
        self.close("finished")

    def save(self, files: Mapping[str, Path]) -> None:
        for number in self.last:
            self.tracking.call(number, "save", self.run, files)

    def close(self, status: Status) -> None:
        for number in self.last:
            self.tracking.call(number, "close", self.run, status)
        self.last = {}

    def _open(self) -> None:
        if not self.last:
            self.last = {
                number: self.tracking.call(number, "open", self.run) or 0 for number in [*self.tracking.active]
            }

    def start(self, experiment: Any, journal: Sequence[RoundRecord]) -> None:
        self.catch_up(journal)

    def round(self, record: RoundRecord) -> None:
        self.log(record.round, round_metrics(record))

    def note(self, text: str) -> None:
        """Not tracked."""

    def warn(self, text: str) -> None:
        """Not tracked."""

    def finish(self) -> None:
        """`finished` comes after it, when all files are there."""


def tracked_run(
    folder: Path, config: Mapping[str, Any], group: str = "", labels: Mapping[str, str] | None = None
) -> TrackedRun:
    """The run in a folder, with the settings that its config.json has."""
    made_with = {key: config[key] for key in _MADE_WITH if key in config}
    return TrackedRun(folder.name, "run", group, dict(labels or {}), {**config["experiment"], "made_with": made_with})


def run_files(folder: Path) -> dict[str, Path]:
    """The files of a finished run that trackers keep: its models, settings and figures."""
    found = [*sorted(folder.glob("model*.safetensors")), *(folder / name for name in KEPT)]
    return {path.name: path for path in found if path.is_file()}


def tracking(given: TrackInput, out: Path, tell: Tell | None = None) -> Tracking | None:
    """The trackers of `--track` or `track=`, ready to be used, None without any; refused where they cannot be.

    `tell` gets a sentence where one fails later; without it there is a warning of Python's.
    """
    chosen = chosen_trackers(given)
    if not chosen:
        return None
    made = Tracking(chosen, tell or _python_warning)
    made.prepare(out)
    return made


def chosen_trackers(given: TrackInput) -> list[tuple[str, Any]]:
    """The trackers by name; refuses what is unknown, given twice or not installed, and writes nothing."""
    several = given if isinstance(given, list | tuple) else [] if given is None else [given]
    made = [_chosen(one) for one in several]
    names = [name for name, _ in made]
    if len(set(names)) < len(names):
        raise InputError(f"the tracker {next(name for name in names if names.count(name) > 1)} is given twice")
    for name, tracker in made:
        for module in getattr(tracker, "requires", ()):
            package(module, name)
    return made


def _chosen(given: Any) -> tuple[str, Any]:
    """A tracker with its name, from `NAME`, `NAME:WHERE` or an object."""
    if isinstance(given, str):
        name, _, where = given.partition(":")
        return name, trackers[name](where)
    name = given.__name__ if isinstance(given, type) else type(given).__name__
    if isinstance(given, type):
        raise InputError(f"the tracker {name} is a class: give an object of it, {name}()")
    if not callable(getattr(given, "log", None)):
        raise InputError(f"the tracker {name} has no method log(run, step, metrics), see fedstill.Tracker")
    return name, given


def _python_warning(text: str) -> None:
    warnings.warn(text, RuntimeWarning, stacklevel=2)


def _sentence(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:_LONGEST]


def _call(tracker: Any, method: str, *given: Any) -> Any:
    assert method in METHODS
    found = getattr(tracker, method, None)
    return None if found is None else found(*given)
