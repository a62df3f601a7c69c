"""What slices add to the command line: commands, and lines about a finished run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedstill.core.registry import Registry
from fedstill.core.settings import Settings

if TYPE_CHECKING:
    from fedstill.cli.plain import Commands
    from fedstill.core.records import RecordSection
    from fedstill.runtime.result import Run


@dataclass(frozen=True)
class RunSummary:
    """What is reported of a finished run beside the usual."""

    section: Callable[[Run], RecordSection | None]  # of what `--json` prints, under the summary's name
    show: Callable[[Run], None]  # in the terminal


commands: Registry[Callable[..., None] | Commands] = Registry("command")
documented_settings: Registry[type[Settings]] = Registry("settings for the reference")  # of commands, by heading
run_summaries: Registry[RunSummary] = Registry("summary of a run")
