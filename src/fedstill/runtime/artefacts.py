"""What slices keep with a finished run, each in a file of its own: `<name>.json` in the run's folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fedstill.core.registry import Registry
from fedstill.core.task import Tensors
from fedstill.runtime.client_store import ClientStore
from fedstill.runtime.evaluation import CentralEvaluator
from fedstill.runtime.plan import Plan


@dataclass(frozen=True)
class FinishedRun:
    """A run that has just ended, where the server has test data: its plan, its state and its models."""

    plan: Plan
    evaluator: CentralEvaluator
    server: Tensors
    store: ClientStore
    models: Mapping[str, Mapping[str, Tensors]]  # by which (last, best, selected) and architecture; may be empty


Artefact = Callable[[FinishedRun], "dict[str, Any] | None"]
"""What to keep, as JSON values; None: nothing."""

artefacts: Registry[Artefact] = Registry("artefact of a run")
