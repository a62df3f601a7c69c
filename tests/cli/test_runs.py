"""`fedstill runs`, and `fedstill show` with several runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ..report.conftest import MakeRun, make_run

__all__ = ["make_run"]
Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def folders(make_run: MakeRun, call: Call) -> list[Path]:
    """Two runs in `runs`, called as runs are."""
    made = [make_run({"method": "fedavg", "seed": 7}), make_run({"method": "fedprox", "seed": 7}, (0.2, 0.8))]
    names = ["fedavg-digits-0011223344556677", "fedprox-digits-8899aabbccddeeff"]
    for run, name in zip(made, names, strict=True):
        config = json.loads((run.path / "config.json").read_text())
        (run.path / "config.json").write_text(json.dumps({**config, "identity": name[-16:]}))
    return [run.path.rename(run.path.with_name(name)) for run, name in zip(made, names, strict=True)]


def test_a_list_of_runs(folders: list[Path], succeed: Callable[..., str]) -> None:
    printed = succeed("runs", "--sort", "accuracy", "--column", "rate")
    assert printed.index("00112233") < printed.index("8899aabb")
    assert "90.00" in printed
    (only,) = json.loads(succeed("runs", "runs", "--where", "method=fedprox", "--json"))["runs"]
    assert only["run"] == folders[1].name
    assert only["settings"]["method.mu"] == 0.01
    assert succeed("runs", "--where", "accuracy>0.95") == "no runs for which these conditions hold\n"


def test_two_runs_beside_each_other(folders: list[Path], succeed: Callable[..., str]) -> None:
    for folder, said in zip(folders, ([1, 1, 0, 0], [1, 0, 1, 0]), strict=True):
        (folder / "predictions.json").write_text(json.dumps({"labels": [1, 1, 0, 0], "last": said}))
    printed = succeed("show", "00112233", "fedprox-dig")
    assert "export" not in printed, "neither has a model"
    for folder in folders:
        (folder / "model-last.safetensors").touch()
    printed = succeed("show", "00112233", "fedprox-dig")
    assert f"the model of fedavg: fedstill export runs/{folders[0].name} model.onnx" in printed
    assert "fedavg alone is right in 2 and fedprox alone in 0" in printed
    assert "method" in printed
    assert "each from 20.00" in printed
    assert printed.count("method") == 1, "settings are shown once"
    assert str(folders[1].relative_to(Path.cwd())) in printed
    told = json.loads(succeed("show", "runs", "--json"))
    assert [row["method"] for row in told["runs"]] == ["fedavg", "fedprox"]
    assert "McNemar" in told["verdict"]


def test_other_test_samples_give_no_verdict(folders: list[Path], succeed: Callable[..., str]) -> None:
    for folder, labels in zip(folders, ([1, 1], [1, 0]), strict=True):
        (folder / "predictions.json").write_text(json.dumps({"labels": labels, "last": [1, 1]}))
    assert json.loads(succeed("show", "runs", "--json"))["verdict"] is None


def test_a_name_that_means_several_runs_is_refused(folders: list[Path], call: Call) -> None:
    code, _, error = call("show", "fed")
    assert code == 2
    assert "fed may be any of 2 runs in runs: fedavg-digits-" in error


def test_one_run_is_deleted_by_name(folders: list[Path], call: Call, succeed: Callable[..., str]) -> None:
    assert json.loads(succeed("clean", "00112233", "--json"))["would_free_bytes"] > 0
    assert all(folder.exists() for folder in folders)
    succeed("clean", "00112233", "--yes")
    assert [folder.exists() for folder in folders] == [False, True]
    code, _, error = call("clean", "8899aabb", "--all", "--yes")
    assert (code, folders[1].exists()) == (2, True)
    assert "not both" in error
    assert call("clean", "nothing", "--yes")[0] == 2
