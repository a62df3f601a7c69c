"""Which round leads: by accuracy, or by another metric that the experiment names."""

from __future__ import annotations

from math import isfinite
from typing import Literal, get_args

from fedstill.core.errors import InputError, did_you_mean
from fedstill.core.records import Evaluation

Ranking = Literal[
    "accuracy",
    "class_accuracy",
    "loss",
    "auc",
    "balanced_accuracy",
    "f1",
    "sensitivity",
    "specificity",
    "calibration_error",
]
RANKINGS: tuple[Ranking, ...] = get_args(Ranking)
TITLES: dict[str, str] = {
    name: {"auc": "AUC", "f1": "F1"}.get(name, name.replace("_", " ")) for name in RANKINGS
}  # as tables and figures call them
LOWER_IS_BETTER = frozenset({"loss", "calibration_error"})
_BINNED = ("auc", "calibration_error")  # that sites can only measure with counts of scores


def check_metric_name(name: str) -> Ranking:
    """A metric by its name; anything else is refused before any work."""
    for known in RANKINGS:
        if name == known:
            return known
    raise InputError(f"unknown metric {name!r}: {did_you_mean(name, RANKINGS)}")


def check_ranking(select_by: Ranking, classifies: bool, counted: bool) -> None:
    """Refuse a metric that no round would have; `counted`: scores are known, at the server or as counts of sites."""
    if not classifies and select_by not in ("accuracy", "class_accuracy", "loss"):
        raise InputError(f"select_by={select_by} is for one class per sample, which this task has not: leave it out")
    if not counted and select_by in _BINNED:
        raise InputError(f"select_by={select_by} needs counts of scores from the sites: add site_metrics=true")


def score_of(evaluation: Evaluation, which: str, select_by: Ranking) -> float | None:
    """How good a round is on test data (`best`) or validation data (`selected`), higher is better; None: unknown."""
    chosen = evaluation.test if which == "best" else evaluation.validation
    further = evaluation.further
    beside = {} if further is None else further.test if which == "best" else further.validation
    value = {**chosen, **beside}.get(select_by)
    if value is None or (select_by != "accuracy" and not isfinite(value)):
        return None
    return -value if select_by in LOWER_IS_BETTER else value
