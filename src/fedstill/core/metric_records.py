"""Records of metrics beside accuracy and loss: of a round, and of a finished run's models."""

from __future__ import annotations

from pydantic import Field

from fedstill.core.record_base import Metrics, Number, Record


class FurtherMetrics(Record):
    """Metrics of classifiers beside accuracy and loss: AUC, balanced accuracy, F1, calibration error and others."""

    test: Metrics = Field(description="of the shared models on test data; of personal models, the mean")
    validation: Metrics = Field(default_factory=dict, description="the same on the validation share")
    sites: dict[int, Metrics] | None = Field(
        None, description="of an evaluation on site, after the last round: by site, all metrics on its own test data"
    )


class ModelMetrics(Record):
    """Metrics of one model of a finished run on the test samples."""

    overall: Metrics = Field(
        description="means over classes; with two classes, sensitivity and specificity of the second"
    )
    intervals: dict[str, tuple[Number, Number]] = Field(
        description="95 % intervals by metric: percentiles over resampled test samples"
    )
    by_class: dict[str, list[Number | None]] = Field(description="by metric, a value for each class; null: not defined")
    calibration: list[tuple[int, Number, int]] = Field(
        description="by bin of confidence: samples, sum of confidences, right answers"
    )
    resamples: int = Field(description="number of times that the test samples were resampled")
