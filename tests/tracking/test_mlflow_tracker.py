"""An MLflow store on disk, read back by MLflow's client."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import fedstill
from fedstill.core.errors import InputError
from fedstill.tracking.mlflow_tracker import MLflow
from fedstill.tracking.tracker import TrackedRun

pytest.importorskip("mlflow")

SMALL: dict[str, Any] = {"data": "digits", "model": "mlp", "clients": 2, "rounds": 2, "training": {"epochs": 1}}


def stop_after_one(record: Any) -> None:
    if record.round == 1:
        raise fedstill.StopRun


@pytest.mark.slow  # MLflow takes most of this to make its database
def test_a_store_on_disk_holds_each_round_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow.tracking import MlflowClient

    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)
    kept = MLflow()
    fedstill.run("fedavg", out=tmp_path, track=kept, callbacks=stop_after_one, **SMALL)
    run = fedstill.run("fedavg", out=tmp_path, track="mlflow", **SMALL)
    recipe = {"experiment": SMALL, "grid": {"method": ["fedavg", "fedprox"]}}
    named = tmp_path / "a doctor's 'grid' (50 %).yaml"  # MLflow's queries cannot hold such a name
    named.write_text(json.dumps(recipe))
    fedstill.study(named, out=tmp_path, workers=1, track="mlflow")
    fedstill.study(named, out=tmp_path, workers=1, track="mlflow")

    client = MlflowClient(f"sqlite:///{tmp_path}/mlflow/mlflow.db")
    experiment = client.get_experiment_by_name("fedstill").experiment_id
    found = {(one.info.run_name, one.data.tags["fedstill.group"]): one for one in client.search_runs([experiment])}
    assert len(found) == 4  # the run, the study, and its two cells
    alone = found[run.path.name, ""]
    history = client.get_metric_history(alone.info.run_id, "test/accuracy")
    assert [(one.step, one.value) for one in history] == [(one.round, one.accuracy) for one in run.journal]
    assert alone.info.status == "FINISHED"
    assert alone.data.params["training/epochs"] == "1"
    names = {one.path for one in client.list_artifacts(alone.info.run_id)}
    assert {"model-last.safetensors", "config.json", "result.json"} <= names
    (study,) = [one for one in found.values() if one.data.tags["fedstill.kind"] == "study"]
    cells = [one for one in found.values() if one.data.tags.get("mlflow.parentRunId") == study.info.run_id]
    assert len(cells) == 2
    for cell in cells:
        assert [one.step for one in client.get_metric_history(cell.info.run_id, "test/accuracy")] == [1, 2]

    large = TrackedRun("large fleet", settings={"odd ' name": 1})
    assert kept.open(large) == 0
    kept.log(large, 1, {f"fleet/devices/{number}": float(number) for number in range(2001)})
    assert kept.open(large) == 1
    assert client.get_run(kept.ids["large fleet"]).data.metrics["fleet/devices/2000"] == 2000
    client.delete_experiment(experiment)
    with pytest.raises(InputError, match="its experiment fedstill was deleted"):
        MLflow().prepare(tmp_path)


def test_a_store_that_cannot_be_reached_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="MLflow cannot use the store unknown-scheme"):
        fedstill.run("fedavg", out=tmp_path, track="mlflow:unknown-scheme://here", **SMALL)
    assert list(tmp_path.iterdir()) == []
