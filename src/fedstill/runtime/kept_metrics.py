"""What a run keeps of its models beside accuracy: metrics with intervals and of each class, in metrics.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedstill.core.metric_records import ModelMetrics
from fedstill.core.task import Task, Tensors
from fedstill.runtime.artefacts import FinishedRun, artefacts
from fedstill.tasks.class_intervals import bootstrap_intervals, resamples_for
from fedstill.tasks.class_metrics import calibration_of, multilabel_sums_of_scores
from fedstill.tasks.classification import LABELS, OUTPUTS

Models = Mapping[str, Tensors]  # by architecture


@artefacts.register("metrics")
def kept_metrics(ended: FinishedRun) -> dict[str, Any] | None:
    """By model (last, best, selected); nothing where clients share no model, or several."""
    found: dict[str, ModelMetrics] = {}
    for which, models in ended.models.items():
        if len(models) != 1:
            return None
        same = next((one for one in found if _equal(ended.models[one], models)), None)
        made = found[same] if same is not None else _measured(ended, models)
        if made is None:
            return None
        found[which] = made
    return {which: one.to_dict() for which, one in found.items()} or None


def _measured(ended: FinishedRun, models: Models) -> ModelMetrics | None:
    ((architecture, state),) = models.items()
    task: Task = ended.evaluator.task
    scores = task.score([task.build(architecture, state)], ended.evaluator.test)
    metrics = task.class_metrics(scores)
    if metrics is None or OUTPUTS not in scores:
        return None
    said, labels = scores[OUTPUTS], scores[LABELS]
    sound = bool(said.isfinite().all())
    draw = ended.plan.streams.draw("metrics", "resamples")
    calibrated = _calibration_with_several if labels.ndim == 2 else calibration_of
    bins = calibrated(said, labels).T.tolist() if sound else []
    return ModelMetrics(
        overall=dict(metrics.overall),
        intervals=bootstrap_intervals(said, labels, draw) if sound else {},
        by_class={name: list(values) for name, values in metrics.by_class.items()},
        calibration=[(int(samples), confidence, int(right)) for samples, confidence, right in bins],
        resamples=resamples_for(*said.shape) if sound else 0,
    )


def _calibration_with_several(said: Tensor, labels: Tensor) -> Tensor:
    return multilabel_sums_of_scores(said, labels).calibration


def _equal(first: Models, second: Models) -> bool:
    """Whether two models are one: the best round is often the last."""
    return first.keys() == second.keys() and all(
        torch.equal(first[name][tensor], second[name][tensor]) for name in first for tensor in first[name]
    )
