"""Which round leads by which metric, and which metrics are refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import fedstill
from fedstill.core.errors import InputError
from fedstill.core.metric_records import FurtherMetrics
from fedstill.core.records import Evaluation
from fedstill.runtime.assemble import make_experiment
from fedstill.runtime.round_ranking import RANKINGS, TITLES, check_metric_name, check_ranking, score_of
from fedstill.tasks.class_metrics import LOWER_IS_BETTER, NAMES


def evaluation(**changes: Any) -> Evaluation:
    further = FurtherMetrics(test={"auc": 0.9, "calibration_error": 0.2}, validation={"auc": 0.8})
    given = {
        "finite": True,
        "test": {"accuracy": 0.7, "loss": 1.5},
        "validation": {"accuracy": 0.6},
        "further": further,
    }
    return Evaluation(**{"extra_models": {}, "negative_variances": 0.0, **given, **changes})


def test_rounds_are_ranked_by_the_metric_that_is_named() -> None:
    assert score_of(evaluation(), "best", "accuracy") == 0.7
    assert score_of(evaluation(), "selected", "accuracy") == 0.6
    assert score_of(evaluation(), "best", "auc") == 0.9
    assert score_of(evaluation(), "selected", "auc") == 0.8
    assert score_of(evaluation(), "best", "loss") == -1.5
    assert score_of(evaluation(), "best", "calibration_error") == -0.2


def test_a_round_without_the_metric_does_not_lead() -> None:
    assert score_of(evaluation(further=None), "best", "auc") is None
    assert score_of(evaluation(test={"accuracy": 0.5, "loss": math.nan}), "best", "loss") is None
    assert score_of(evaluation(validation={}), "selected", "accuracy") is None


def test_every_metric_can_rank_rounds() -> None:
    assert set(NAMES) < set(RANKINGS)
    assert all(TITLES[name] == title for name, title in NAMES.items())
    assert "calibration_error" in LOWER_IS_BETTER


def test_unknown_and_unmeasurable_metrics_are_refused() -> None:
    assert check_metric_name("auc") == "auc"
    with pytest.raises(InputError, match=r"unknown metric 'aucc': did you mean 'auc'\? Known: accuracy, auc"):
        check_metric_name("aucc")
    with pytest.raises(InputError, match="select_by: unknown choice 'recall'"):
        make_experiment({"method": "fedavg", "select_by": "recall"})
    with pytest.raises(InputError, match="for one class per sample"):
        check_ranking("auc", classifies=False, counted=True)
    with pytest.raises(InputError, match="add site_metrics=true"):
        check_ranking("auc", classifies=True, counted=False)
    check_ranking("f1", classifies=True, counted=False)


def test_the_best_round_is_that_of_the_metric(tmp_path: Path) -> None:
    """The same run by accuracy and by loss: other rounds lead, and nothing else differs."""
    given = {"data": "digits", "model": "mlp", "clients": 2, "rounds": 3, "training": {"rate": 0.5}}
    usual, other = (fedstill.run("fedavg", **given, select_by=name, out=tmp_path) for name in ("accuracy", "auc"))
    assert usual.path != other.path
    assert usual.sha256 == other.sha256
    areas = {record.round: record.metrics["auc"] for record in other.journal}
    assert areas[other.result.round_of["best"]] == max(areas.values())
    assert other.metrics["best"].overall["auc"] == max(areas.values())


def test_settings_that_were_added_later_leave_identities_alone() -> None:
    usual = make_experiment({"method": "fedavg"})
    assert usual.digest("data") == make_experiment({"method": "fedavg", "select_by": "accuracy"}).digest("data")
    assert usual.digest("data") != make_experiment({"method": "fedavg", "select_by": "auc"}).digest("data")
    assert "site_metrics" not in usual.hashed()
