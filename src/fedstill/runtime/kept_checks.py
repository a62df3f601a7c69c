"""What a run keeps of its data for its checks, since its folder does not contain the data: checks.json."""

from __future__ import annotations

from collections import Counter
from typing import Any

from fedstill.core.dataset import Subset
from fedstill.core.records import DataCheck, RunChecks
from fedstill.runtime.artefacts import FinishedRun, artefacts
from fedstill.runtime.data_check import checked_data
from fedstill.runtime.plan import Simulation


@artefacts.register("checks")
def kept_checks(ended: FinishedRun) -> dict[str, Any]:
    """The classes of the test samples, which samples repeat, and what was found while they were read."""
    truth = ended.evaluator.truth()
    counts = Counter(truth or ())
    numbers = [counts[one] for one in range(len(ended.plan.task.classes))] if truth else []
    bundle = ended.plan.bundle if isinstance(ended.plan, Simulation) else None
    doubts = list(bundle.doubts) if bundle is not None else []
    notes = [note for note in bundle.notes if note not in doubts] if bundle is not None else []
    checks = RunChecks(class_counts=numbers, data=_data_check(ended), notes=notes or None, doubts=doubts or None)
    return checks.to_dict()


def _data_check(ended: FinishedRun) -> DataCheck | None:
    plan = ended.plan
    if not isinstance(plan, Simulation):
        return None
    train = Subset(plan.clients.data, plan.clients.shards.order)
    return checked_data(plan.fingerprint, train, ended.evaluator.test, plan.bundle.shape)
