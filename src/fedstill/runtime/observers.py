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
        """Something good to know (a run found finished); a quiet observer may leave it out."""

    def warn(self, text: str) -> None:
        """Something that a person must know (a damaged file), however quiet it should be."""

    def finish(self) -> None:
        """The run is complete."""
