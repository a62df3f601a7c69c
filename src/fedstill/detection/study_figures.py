"""The names of detection metrics in studies; the metrics themselves belong to the task."""

from __future__ import annotations

from fedstill.studies.extensions import StudyFigures, study_figures

study_figures.register("detection")(
    StudyFigures(
        lambda planned: lambda one, run, finished: {},
        {
            "map_25": ("mean average precision at an IoU above 0.25 after the last round", "%", 100),
            "map_50": ("mean average precision at an IoU above 0.5 after the last round", "%", 100),
            "ar_25": ("average recall at an IoU above 0.25 after the last round", "%", 100),
            "ar_50": ("average recall at an IoU above 0.5 after the last round", "%", 100),
        },
    )
)
