"""Runs as files: what is refused before any work, and what 8-bit weights cost."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

import fedstill
from fedstill.cli.export import export as command
from fedstill.core.errors import InputError
from fedstill.export.export_run import export_run
from fedstill.export.subject import Subject, bytes_of, parameters_of
from fedstill.models.portable.onnx_file import OnnxModel
from fedstill.runtime.result import Run


def test_a_run_becomes_a_file(digits_run: Run, tmp_path: Path) -> None:
    outcome = export_run(Subject(digits_run), tmp_path / "new" / "student.onnx")
    assert outcome.file.difference < 1e-4
    assert outcome.inputs == "test data"
    assert outcome.file.samples == 16
    assert outcome.int8 is None
    model = OnnxModel(outcome.file.path.read_bytes())
    about = model.about()
    assert about["run"] == digits_run.config["identity"]
    assert (about["which"], about["data"], about["method"]) == ("last", "digits", "centralised")
    scores = digits_run.task.score([model], Subject(digits_run).test_data)
    assert digits_run.task.summarise(scores)["accuracy"] == pytest.approx(digits_run.accuracy, abs=1e-9)


def test_eight_bits_are_measured_on_the_test_data(digits_run: Run, tmp_path: Path) -> None:
    outcome = export_run(Subject(digits_run), tmp_path / "student.onnx", int8=True)
    assert outcome.int8 is not None
    assert outcome.int8.float_accuracy == pytest.approx(digits_run.accuracy, abs=1e-9)
    assert abs(outcome.int8.accuracy - outcome.int8.float_accuracy) < 0.05
    assert outcome.file.bytes == outcome.file.path.stat().st_size < 0.5 * outcome.int8.float_bytes
    assert [path.name for path in tmp_path.iterdir()] == ["student.onnx"]
    assert "8-bit" in OnnxModel(outcome.file.path.read_bytes()).about()["weights"]


def test_a_clients_own_model_can_be_exported(tmp_path: Path) -> None:
    run = fedstill.run("local-only", data="digits", model="mlp", clients=2, rounds=1, out=tmp_path)
    outcome = export_run(Subject(run, client=1), tmp_path / "own.pt2")
    assert outcome.file.path.is_file()
    assert Subject(run, client=1).about()["client"] == "1"
    with pytest.raises(InputError, match="--client"):
        Subject(run)


def test_what_cannot_be_exported_is_refused(digits_run: Run, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"use \.onnx or \.pt2"):
        export_run(Subject(digits_run), tmp_path / "student.pth")
    with pytest.raises(InputError, match=r"use the suffix \.onnx"):
        export_run(Subject(digits_run), tmp_path / "student.pt2", int8=True)
    with pytest.raises(InputError, match="no validation share"):
        Subject(digits_run, "selected")
    with pytest.raises(InputError, match="unknown model 'lats'"):
        Subject(digits_run, "lats")
    unfinished = tmp_path / "unfinished"
    shutil.copytree(digits_run.path, unfinished)
    (unfinished / "result.json").unlink()
    with pytest.raises(InputError, match="not finished"):
        Subject(Run(unfinished))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["unfinished"]


def changed(run: Run, folder: Path, **config: object) -> Run:
    shutil.copytree(run.path, folder)
    content = json.loads((folder / "config.json").read_text())
    for key, value in config.items():
        content["experiment" if key in content["experiment"] else key] = (
            content["experiment"] | {key: value} if key in content["experiment"] else value
        )
    (folder / "config.json").write_text(json.dumps(content))
    (folder / "digests.json").unlink()  # it was not edited: it was made so
    return Run(folder)


def test_models_that_label_points_are_refused(digits_run: Run, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="labels every point"):
        Subject(changed(digits_run, tmp_path / "run", model="pointnet2-segmentation"))


def test_without_the_runs_own_data(digits_run: Run, tmp_path: Path) -> None:
    """A file can be checked on random inputs; what 8-bit weights cost cannot be known without the data."""
    run = changed(digits_run, tmp_path / "run", fingerprint="other")
    assert export_run(Subject(run), tmp_path / "student.pt2").inputs == "random"
    with pytest.raises(InputError, match="digits has changed since"):
        Subject(run).test_data  # noqa: B018
    inputs, origin = Subject(run).inputs(40)
    assert (inputs.shape, origin) == ((40, 1, 8, 8), "random")
    assert float(inputs.abs().max()) <= 1


def test_inputs_are_the_first_test_samples_again_and_again(digits_run: Run) -> None:
    data = Subject(digits_run).test_data
    inputs, origin = Subject(digits_run).inputs(len(data) + 2)
    assert origin == "test data"
    assert torch.equal(inputs[-2:], inputs[:2])


def test_sizes_by_hand() -> None:
    """BatchNorm of 3: 6 parameters, 6 statistics in float32 and a counter in int64."""
    norm = torch.nn.BatchNorm1d(3)
    assert parameters_of(norm) == 6
    assert bytes_of(norm) == 12 * 4 + 8


def test_the_command_prints_what_it_wrote(digits_run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    command(digits_run.path, tmp_path / "s.onnx", int8=True)
    said = capsys.readouterr().out
    assert "agrees with PyTorch within" in said
    assert "8-bit" in said
    command(digits_run.path, tmp_path / "s.pt2", which="best", json=True)
    told = json.loads(capsys.readouterr().out)
    assert told["bytes"] == (tmp_path / "s.pt2").stat().st_size
    assert told["int8"] is None
    assert torch.get_num_threads() == threads
