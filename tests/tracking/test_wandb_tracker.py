"""Files that Weights & Biases writes offline, read back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fedstill
from fedstill.tracking.wandb_files import histories

pytest.importorskip("wandb")

SMALL: dict[str, Any] = {"data": "digits", "model": "mlp", "clients": 2, "rounds": 3, "epochs": 1}


def stop_after_one(record: Any) -> None:
    if record.round == 1:
        raise fedstill.StopRun


def test_offline_files_hold_each_round_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from wandb.proto import wandb_internal_pb2

    for name in ("WANDB_MODE", "WANDB_DIR", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    fedstill.run("fedavg", out=tmp_path, track="wandb", callbacks=stop_after_one, **SMALL)
    run = fedstill.run("fedavg", out=tmp_path, track="wandb", **SMALL)
    files = sorted((tmp_path / "wandb").glob("offline-run-*/*.wandb"))
    assert len(files) == 2
    assert len({file.name for file in files}) == 1, "both belong to one run"
    steps = [step for file in files for step in histories(file, wandb_internal_pb2)]
    assert [step["_step"] for step in steps] == [1, 2, 3]
    assert [step["test/accuracy"] for step in steps] == [record.accuracy for record in run.journal]
    assert (files[-1].parent / "files" / "model-last.safetensors").exists()
    fedstill.run("fedavg", out=tmp_path, track="wandb", **SMALL)
    assert sorted((tmp_path / "wandb").glob("offline-run-*/*.wandb")) == files
