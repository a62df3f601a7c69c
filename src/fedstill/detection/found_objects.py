"""Detections in test scenes, stored with a finished run, so that a report can show them without the data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from fedstill.core.dataset import Dataset, every_row
from fedstill.core.task import Tensors
from fedstill.detection.detection_task import Detection, proposals
from fedstill.detection.point_features import split_columns
from fedstill.detection.proposals import Proposals
from fedstill.runtime.artefacts import FinishedRun, artefacts

SHOWN = 6  # test scenes whose points are stored too, for display
_AT_ONCE = 16

Found = dict[str, Any]


def detections(task: Detection, models: Mapping[str, Mapping[str, Tensors]], test: Dataset) -> dict[str, list[Found]]:
    """The detections of a run's models (last, best, ...) in every test scene, and the ground truth as `scenes`."""
    found = {which: found_in(task, states, test) for which, states in models.items() if len(states) == 1}
    return {"scenes": true_scenes(test), **found}


def found_in(task: Detection, models: Mapping[str, Tensors], test: Dataset) -> list[Found]:
    """The detections of one shared model in every test scene, and below `published` the proposals of that protocol."""
    ((architecture, state),) = models.items()
    model = task.build(architecture, state).eval()
    found: list[Found] = []
    for rows in every_row(test, _AT_ONCE):
        inputs = test.batch(rows)["inputs"]
        with torch.inference_mode():
            output = task.forward(model, {"inputs": inputs})
        both = zip(*(proposals(name, output, inputs) for name in ("strict", "published")), strict=True)
        found += [_written(strict) | {"published": _written(published)} for strict, published in both]
    return found


def true_scenes(test: Dataset) -> list[Found]:
    """The true boxes of every test scene, and the points of the first few."""
    scenes: list[Found] = []
    for rows in every_row(test, _AT_ONCE):
        batch = test.batch(rows)
        for number in range(len(rows)):
            there = batch["labels"][number] >= 0
            scene: Found = {
                "boxes": _rounded(batch["boxes"][number][there].tolist()),
                "classes": batch["labels"][number][there].tolist(),
            }
            if len(scenes) < SHOWN:
                scene["points"] = _rounded(split_columns(batch["inputs"][number])[0].tolist())
            scenes.append(scene)
    return scenes


def _written(one: Proposals) -> Found:
    """Boxes, scores and classes; the box of each score where boxes have several."""
    several = len(one.boxes) != len(one.scores)
    return {
        "boxes": _rounded(one.boxes.tolist()),
        **({"rows": one.rows.tolist()} if several else {}),
        "scores": [float(f"{score:.9g}") for score in one.scores.tolist()],
        "classes": one.classes.tolist(),
    }


def _rounded(rows: list[list[float]]) -> list[list[float]]:
    """Round to a tenth of a millimetre."""
    return [[round(value, 4) for value in row] for row in rows]


@artefacts.register("detections")
def keep_detections(run: FinishedRun) -> dict[str, Any] | None:
    """For a detector's run, the detections of each of its models in every test scene."""
    if not isinstance(run.plan.task, Detection) or not run.models:
        return None
    return detections(run.plan.task, run.models, run.evaluator.test)
