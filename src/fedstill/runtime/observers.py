"""Observers are called when something happens in a run; they change nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from fedstill.core.records import RoundRecord
from fedstill.runtime.experiment import Experiment


class Observer(Protocol):
    """Of a run: progress displays, trackers, tests."""

    def start(self, experiment: Experiment, journal: Sequence[RoundRecord]) -> None:
        """The run begins, or goes on after the rounds in `journal`."""

    def round(self, record: RoundRecord) -> None:
        """A round was committed; `record` is its line in the journal."""

    def note(self, text: str) -> None:
        """Information (a run was already finished); a quiet observer may omit it."""

    def warn(self, text: str) -> None:
        """A warning (a damaged file), shown even by a quiet observer."""

    def finish(self) -> None:
        """The run is complete."""
