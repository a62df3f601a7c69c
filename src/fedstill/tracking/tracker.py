"""What a tracker is: an object that is handed the rounds of runs, and keeps them somewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Status = Literal["finished", "stopped", "failed"]


@dataclass(frozen=True)
class TrackedRun:
    """A run as trackers see it; `name` and `group` together stay the same when a run is resumed."""

    name: str  # of the run's folder, which ends in a digest of all that can change its numbers
    kind: str = "run"  # or query, pretraining
    group: str = ""  # the study that it belongs to
    labels: Mapping[str, str] = field(default_factory=dict)  # by axis of the study, those of its cell
    settings: Mapping[str, Any] = field(default_factory=dict)  # nested, as in the run's config.json

    @property
    def key(self) -> str:
        return f"{self.group}/{self.name}" if self.group else self.name


class Tracker:
    """A base class for trackers; any object with a method `log` will do, and the others are optional.

    Every call names the run, because a tracker follows all runs of a study. What a tracker raises is logged and shown
    as a warning, and the run goes on without it; only what `prepare` raises ends the command, before any work.

    >>> import fedstill
    >>> class Printer(fedstill.Tracker):
    ...     def log(self, run, step, metrics):
    ...         print(step, sorted(metrics)[0])
    >>> made = fedstill.run("fedavg", clients=2, rounds=2, out=getfixture("tmp_path"), track=Printer())
    1 clients/accepted
    2 clients/accepted
    """

    requires: tuple[str, ...] = ()  # modules without which it cannot be used

    def prepare(self, out: Path) -> None:
        """Called once, before any work, with the folder of runs; raise `fedstill.InputError` if nothing can be kept."""

    def open(self, run: TrackedRun) -> int | None:
        """A run begins or continues; returns the last step that is kept already, or None if there is none."""

    def log(self, run: TrackedRun, step: int, metrics: Mapping[str, float]) -> None:
        """The numbers of a step: of a round, or of an epoch of a query or a pre-training. Steps count from one."""

    def save(self, run: TrackedRun, files: Mapping[str, Path]) -> None:
        """Files of a finished run, by name: its models, settings and result."""

    def close(self, run: TrackedRun, status: Status) -> None:
        """The run is finished, was stopped and can be resumed, or failed."""


METHODS = ("prepare", "open", "log", "save", "close")
