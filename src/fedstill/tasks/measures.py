"""What the number that ranks rounds, `accuracy`, really is in each task, as tables and figures call it."""

from __future__ import annotations

from fedstill.models import models
from fedstill.tasks.detection import Detection
from fedstill.tasks.kinds import task_of

ACCURACY = "accuracy"
DETECTED = {"map_25": "mAP@0.25", "map_50": "mAP@0.5", "ar_25": "AR@0.25", "ar_50": "AR@0.5"}


def detects(model: str) -> bool:
    """Whether a model, by name, finds boxes in scenes; one of a plugin that is not loaded counts as a classifier."""
    return model in models.names() and task_of(model) is Detection


def measure_of(model: str) -> str:
    """The name of what ranks a model's rounds.

    >>> measure_of("cnn"), measure_of("detr3d-lite")
    ('accuracy', 'mAP@0.25')
    """
    return DETECTED["map_25"] if detects(model) else ACCURACY
