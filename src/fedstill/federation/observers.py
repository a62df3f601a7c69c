"""Observers are told what happens in a run; they change nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from fedstill.config import Experiment


class Observer(Protocol):
    """Progress displays, trackers, tests."""

    def start(self, experiment: Experiment, journal: Sequence[dict[str, Any]]) -> None:
        """The run begins, or goes on after the rounds in `journal`."""

    def round(self, record: dict[str, Any]) -> None:
        """A round was committed; `record` is its line in the journal."""

    def note(self, text: str) -> None:
        """Something a person should know (a damaged file, a run found finished)."""

    def finish(self) -> None:
        """The run is complete."""
