"""Warnings about a finished run: shown at its end, when it is found again, and in its report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from fedstill.core.records import RoundRecord, RunChecks, RunResult
from fedstill.core.registry import Registry
from fedstill.core.task import Task
from fedstill.runtime.batchnorm_check import check_warning
from fedstill.runtime.experiment import Experiment
from fedstill.runtime.reference_runs import Reference, reference_of
from fedstill.runtime.run_folder import RunFolder


@dataclass(frozen=True)
class EndedRun:
    """What warnings are made from.

    `checks` is what the run kept about its data; None: it was not there. `reference` is what it is held against.
    """

    experiment: Experiment
    result: RunResult
    journal: Sequence[RoundRecord]
    checks: RunChecks | None
    reference: Reference | None = None

    @classmethod
    def of(
        cls, experiment: Experiment, task: Task, folder: RunFolder, result: RunResult, journal: Sequence[RoundRecord]
    ) -> Self:
        """A run in its folder."""
        reference = reference_of(experiment, folder.config(), task, folder.path)
        return cls(experiment, result, journal, folder.checks(), reference)


Caution = Callable[[EndedRun], Sequence[str]]
"""The warnings about a run, each a sentence without its full stop; mostly none."""

run_cautions: Registry[Caution] = Registry("caution about a run")


def cautions(ended: EndedRun) -> list[str]:
    """What the check of BatchNorm statistics warns of, what a run's own checks do, and what slices do."""
    from fedstill.runtime import run_checks  # noqa: F401  # registers the checks of every run, and needs this module

    stale = check_warning(ended.result.batchnorm, ended.experiment.method.settings)
    return [
        *([] if stale is None else [stale]),
        *(text for name in run_cautions for text in run_cautions[name](ended)),
    ]
