"""Warnings about a finished run: shown at its end, when it is found again, and in its report."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fedstill.core.records import RoundRecord, RunResult
from fedstill.core.registry import Registry
from fedstill.runtime.batchnorm_check import check_warning
from fedstill.runtime.experiment import Experiment

Caution = Callable[[Sequence[RoundRecord]], Sequence[str]]
"""The warnings about a run with this journal, each a sentence without its full stop; mostly none."""

run_cautions: Registry[Caution] = Registry("caution about a run")


def cautions(experiment: Experiment, result: RunResult, journal: Sequence[RoundRecord]) -> list[str]:
    """What the check of BatchNorm statistics warns of, and what slices do."""
    stale = check_warning(result.batchnorm, experiment.method.settings)
    return [
        *([] if stale is None else [stale]),
        *(text for name in run_cautions for text in run_cautions[name](journal)),
    ]
