"""Warnings about a finished run: shown at its end, when it is found again, and in its report."""

from __future__ import annotations

from collections.abc import Sequence

from fedstill.core.records import RoundRecord, RunResult
from fedstill.methods import methods
from fedstill.runtime.batchnorm_check import check_warning
from fedstill.runtime.experiment import Experiment


def cautions(experiment: Experiment, result: RunResult, journal: Sequence[RoundRecord]) -> list[str]:
    """What the check of BatchNorm statistics and the method itself warn of."""
    method = experiment.method
    stale = check_warning(result.batchnorm, method.settings)
    own = methods[method.name].cautions([record.method_metrics for record in journal])
    return [*([] if stale is None else [stale]), *own]
