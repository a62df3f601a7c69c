"""Warnings about a finished run, from what its journal says of every round: for the command line and for reports."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fedstill.core.records import RoundRecord
from fedstill.core.registry import Registry

Caution = Callable[[Sequence[RoundRecord]], Sequence[str]]
"""The warnings about a run with this journal, each a sentence without its full stop; mostly none."""

run_cautions: Registry[Caution] = Registry("caution about a run")


def cautions_about(journal: Sequence[RoundRecord]) -> list[str]:
    """All warnings that slices have about a run."""
    return [text for name in run_cautions for text in run_cautions[name](journal)]
