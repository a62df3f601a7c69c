"""The names of detection metrics in studies; the metrics themselves belong to the task."""

from __future__ import annotations

from fedstill.detection.detection_section import MEASURES
from fedstill.studies.extensions import StudyFigures, study_figures

_WORDS = {"mAP": "mean average precision", "AR": "average recall"}


def _described(title: str) -> str:
    """What a metric of this title is.

    >>> _described("strict AR@0.25")
    'average recall at an IoU above 0.25 after the last round, strict protocol'
    """
    *protocol, metric = title.split()
    name, _, threshold = metric.partition("@")
    which = f", {protocol[0]} protocol" if protocol else ""
    return f"{_WORDS[name]} at an IoU above {threshold} after the last round{which}"


study_figures.register("detection")(
    StudyFigures(
        lambda planned: lambda one, run, finished: {},
        {name: (_described(title), "%", 100) for name, title in MEASURES.items()},
    )
)
