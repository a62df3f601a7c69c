"""Event files, read back with TensorBoard's own reader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fedstill
from fedstill.core.errors import InputError

pytest.importorskip("tensorboard")

SMALL: dict[str, Any] = {"data": "digits", "model": "mlp", "clients": 2, "rounds": 3, "epochs": 1}


def stop_after_two(record: Any) -> None:
    if record.round == 2:
        raise fedstill.StopRun


def read_back(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder))
    found.Reload()
    return found


def test_event_files_hold_each_round_once(tmp_path: Path) -> None:
    run = fedstill.run("fedavg", out=tmp_path, track="tensorboard", callbacks=stop_after_two, **SMALL)
    folder = tmp_path / "tensorboard" / run.path.name
    assert [event.step for event in read_back(folder).Scalars("test/accuracy")] == [1, 2]
    # The process was killed in the middle of a record: what is left of it is not counted, nor in the way.
    (file,) = folder.glob("events.*")
    file.write_bytes(file.read_bytes()[:-150])
    assert [event.step for event in read_back(folder).Scalars("test/accuracy")] == [1]
    run = fedstill.run("fedavg", out=tmp_path, track="tensorboard", **SMALL)
    found = read_back(folder)
    scalars = found.Scalars("test/accuracy")
    assert [event.step for event in scalars] == [1, 2, 3]
    assert [event.value for event in scalars] == pytest.approx([record.accuracy for record in run.journal])
    assert {"training/cross-entropy", "traffic/up", "clients/accepted"} <= set(found.Tags()["scalars"])
    settings = found.Tensors("settings")[-1].tensor_proto.string_val[0].decode()
    assert "| training/epochs | 1 |" in settings
    assert "model-last.safetensors" in found.Tensors("files")[-1].tensor_proto.string_val[0].decode()
    before = sorted(folder.iterdir())
    fedstill.run("fedavg", out=tmp_path, track="tensorboard", **SMALL)
    assert sorted(folder.iterdir()) == before


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="file"):
        fedstill.run("fedavg", out=tmp_path / "runs", track=f"tensorboard:{tmp_path / 'file'}", **SMALL)
    assert not (tmp_path / "runs").exists()
