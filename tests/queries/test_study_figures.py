"""Studies in which clients ask for classes, and those whose clients and server share samples, as they run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedstill.queries.outcomes import answered
from fedstill.queries.query import averaged
from fedstill.queries.study_table import query_table
from fedstill.runtime.result import run_called
from fedstill.studies import Study, load_results

ASKING: dict[str, Any] = {
    "experiment": {
        "data": "digits",
        "model": "mlp",
        "clients": 3,
        "rounds": 1,
        "partition": {"name": "pathological", "classes_per_client": 4},
        "training": {"epochs": 2, "batch": 64},
        "method": "local-only",
    },
    "grid": {
        "queries": [
            {"label": "single", "queries": {"classes": "single", "under": 10}},
            {"label": "multi", "queries": {"classes": "multi", "under": 10}},
        ],
        "method": ["local-only", "fedavg", {"name": "qkt", "transfer_epochs": 1}],
        "seed": [7],
    },
}


def test_every_run_is_set_against_learning_alone(tmp_path: Path) -> None:
    """FedAvg and learning alone are run once for both kinds of queries, and answer both."""
    study = Study(ASKING)
    assert len(study.expand()) == 6
    assert len(study.study_plan.jobs) == 4
    results = study.run(tmp_path)
    rows = {(cell[0], cell[1]): row for cell, row in results.runs.items()}
    assert len(rows) == 6
    for queries in ("single", "multi"):
        shared, alone = rows[queries, "fedavg"], rows[queries, "local-only"]
        asked = run_called(rows[queries, "qkt:transfer_epochs=1"].identity, tmp_path)
        run, before = run_called(shared.identity, tmp_path), run_called(alone.identity, tmp_path)
        assert asked is not None
        assert run is not None
        assert before is not None
        # The same clients ask for the same in all runs: what qkt was told says what FedAvg must be held against.
        wanted = {who: one["query"] for who, one in asked.answers().items()}
        found = {who: {**one, "query": wanted[who]} for who, one in run.answers().items()}
        expected = averaged(answered(found, before.answers()))
        for name in ("accuracy", "before", "gain", "forgetting", "uniform"):
            assert shared.figures[f"query.{name}"] == pytest.approx(expected[name], abs=1e-6), (queries, name)
        assert alone.figures["query.accuracy"] == pytest.approx(expected["before"], abs=1e-6)
        kept = averaged(answered(asked.answers()))
        assert rows[queries, "qkt:transfer_epochs=1"].figures["query.gain"] == pytest.approx(kept["gain"], abs=1e-6)
    assert rows["single", "fedavg"].identity == rows["multi", "fedavg"].identity
    assert rows["single", "fedavg"].figures["query.uniform"] != rows["multi", "fedavg"].figures["query.uniform"]
    results.save(tmp_path / "r.json")
    assert query_table(load_results(tmp_path / "r.json")) == query_table(results)


def test_runs_that_share_samples_are_found_again(tmp_path: Path) -> None:
    """What clients and server share is part of a run's identity: a study has to know it beforehand."""
    method = {"name": "feddf", "samples": 40, "steps": 2, "batch": 16}
    recipe = {
        "experiment": {"data": "digits[:50%]", "model": "mlp", "clients": 2, "rounds": 1, "training": {"epochs": 1}},
        "grid": {"method": [{**method, "label": part, "proxy": part} for part in ("digits[50%:]", "digits[60%:]")]},
    }
    results = Study(recipe).run(tmp_path)
    assert len({row.identity for row in results.runs.values()}) == 2
    assert results.failures == {}


def test_samples_that_are_not_here_are_listed(tmp_path: Path) -> None:
    recipe = {
        "experiment": {"data": "digits", "model": "mlp", "method": {"name": "feddf", "proxy": "mnist"}},
        "grid": {"seed": [7]},
    }
    study_plan = Study(recipe, data_root=tmp_path).study_plan
    assert list(study_plan.missing) == ["mnist"]
    assert len(study_plan.jobs) == 1
