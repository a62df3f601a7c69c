"""Metrics of a finished run: what is kept, on which data, and that all ways of evaluating agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.metrics import f1_score, roc_auc_score

import fedstill
from fedstill.data.catalogue import load

GIVEN: dict[str, Any] = {"data": "digits", "model": "mlp", "clients": 3, "rounds": 2}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> fedstill.Run:
    return fedstill.run("fedavg", **GIVEN, out=tmp_path_factory.mktemp("runs"))


def test_what_is_kept_is_what_scikit_learn_finds(run: fedstill.Run) -> None:
    test = load("digits").test
    everything = test.batch(torch.arange(len(test)))
    said = run.task.predict(run.built("last"), everything["inputs"])
    truth = everything["labels"].numpy()
    kept = run.metrics["last"]
    assert kept.overall["auc"] == pytest.approx(roc_auc_score(truth, said, multi_class="ovr"), abs=1e-5)
    assert kept.overall["f1"] == pytest.approx(f1_score(truth, said.argmax(dim=1), average="macro"))
    assert len(kept.by_class["auc"]) == 10
    assert sum(samples for samples, _, _ in kept.calibration) == len(truth)
    assert sum(right for _, _, right in kept.calibration) == round(run.accuracy * len(truth))


def test_intervals_hold_the_figures(run: fedstill.Run) -> None:
    kept = run.metrics["last"]
    for name in ("auc", "balanced_accuracy", "f1", "specificity"):
        low, high = kept.intervals[name]
        assert low <= kept.overall[name] <= high
    low, high = kept.intervals["accuracy"]
    assert low < run.accuracy < high
    assert kept.resamples == 400


def test_the_journal_and_the_history_have_them(run: fedstill.Run) -> None:
    last = run.journal[-1].evaluation
    assert last is not None
    assert last.further is not None
    assert last.further.test == run.metrics["last"].overall
    assert run.history["auc"] == [record.metrics["auc"] for record in run.journal]
    assert run.to_dict()["metrics"]["last"]["overall"]["auc"] == run.metrics["last"].overall["auc"]


def test_metrics_of_sites_are_those_of_all_data(run: fedstill.Run, tmp_path: Path) -> None:
    """On site, counts are exact with and without counts of scores; the AUC is that of rounded scores."""
    plain = fedstill.run("fedavg", **GIVEN, evaluation="on-site", out=tmp_path)
    counted = fedstill.run("fedavg", **GIVEN, evaluation="on-site", site_metrics=True, out=tmp_path)
    exact = run.metrics["last"].overall
    first, second = (one.journal[-1].evaluation.further for one in (plain, counted))  # type: ignore[union-attr]
    assert first is not None
    assert second is not None
    assert "auc" not in first.test
    for name in ("balanced_accuracy", "f1", "sensitivity", "specificity"):
        assert first.test[name] == pytest.approx(exact[name], abs=1e-12)
        assert second.test[name] == first.test[name]
    assert second.test["calibration_error"] == pytest.approx(exact["calibration_error"], abs=1e-6)
    assert second.test["auc"] == pytest.approx(exact["auc"], abs=1e-3)
    assert set(second.sites or {}) == {0, 1, 2}
    assert plain.sha256 == counted.sha256 == run.sha256
    early = counted.journal[0].evaluation
    assert early is not None
    assert early.further is not None
    assert early.further.sites is None


def test_counts_of_scores_are_declared() -> None:
    told = [
        next(
            line["why"]
            for line in fedstill.egress({"method": "fedavg", **GIVEN, **more})["leaves"]
            if "scores" in line["name"]
        )
        for more in ({"evaluation": "on-site"}, {"evaluation": "on-site", "site_metrics": True})
    ]
    assert "counts of scores" not in told[0]
    assert "counts of scores by class" in told[1]


def test_personal_models_have_means_and_nothing_kept(tmp_path: Path) -> None:
    alone = fedstill.run("local-only", **GIVEN, out=tmp_path)
    assert alone.metrics == {}
    assert 0 < alone.journal[-1].metrics["auc"] <= 1
