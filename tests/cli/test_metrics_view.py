"""`show --metric` and `run --metric`."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedstill.cli.app import app

RUN = ["run", "fedavg", "--model", "mlp", "--clients", "2", "--rounds", "2", "--quiet"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs")
    done = CliRunner().invoke(app, [*RUN, "--metric", "auc", "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert "balanced accuracy" in done.output
    (found,) = out.iterdir()
    return found


def test_rounds_by_another_metric(folder: Path) -> None:
    shown = CliRunner().invoke(app, ["show", str(folder), "--metric", "f1"])
    assert shown.exit_code == 0
    assert shown.output.splitlines()[0].split()[:2] == ["round", "F1"]
    assert "95 % interval" in shown.output


def test_a_metric_that_the_run_does_not_have(folder: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, [*RUN, "--set", "evaluation=on-site", "--out", str(tmp_path)])
    assert done.exit_code == 0
    (found,) = tmp_path.iterdir()
    assert "site" in done.output
    shown = CliRunner().invoke(app, ["show", str(found), "--metric", "auc"])
    assert shown.exit_code != 0
    assert "has no auc" in str(shown.exception)
