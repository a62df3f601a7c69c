"""The part of a page about metrics beside accuracy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fedstill
from fedstill.core.errors import InputError
from fedstill.report.classes import classes_section
from fedstill.report.metric_section import metrics_section

GIVEN: dict[str, Any] = {"data": "digits", "model": "mlp", "clients": 2}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, fedstill.Run]:
    out = tmp_path_factory.mktemp("runs")
    return {str(rounds): fedstill.run("fedavg", **GIVEN, rounds=rounds, out=out) for rounds in (1, 2)}


def test_the_table_has_figures_with_intervals(runs: dict[str, fedstill.Run]) -> None:
    section = metrics_section(runs)
    (table,) = section.tables
    assert table.header[:2] == ("Run", "AUC")
    value = table.cells[0][1]
    assert value.value == runs["1"].metrics["last"].overall["auc"]
    assert " to " in value.text
    assert "percentiles over samples drawn again" in section.about


def test_the_diagram_has_a_point_for_each_bin(runs: dict[str, fedstill.Run]) -> None:
    (figure,) = metrics_section(runs).figures
    calibrated, first, _ = figure.data
    assert calibrated["x"] == calibrated["y"] == [0, 1]
    bins = [one for one in runs["1"].metrics["last"].calibration if one[0]]
    assert first["y"] == [right / samples for samples, _, right in bins]
    assert "calibration error" in figure.sentence


def test_classes_have_their_own_figures(runs: dict[str, fedstill.Run]) -> None:
    (table,) = classes_section(runs).tables
    assert {"AUC", "F1", "Specificity"} <= set(table.header)
    place = table.header.index("AUC")
    assert table.cells[0][place].value == runs["1"].metrics["last"].by_class["auc"][0]


def test_a_page_by_another_metric_has_the_best_run_first(runs: dict[str, fedstill.Run], tmp_path: Path) -> None:
    page = fedstill.report(list(runs.values()), tmp_path / "page.html", metric="calibration_error").read_text()
    by_error = sorted(runs.values(), key=lambda run: run.metrics["last"].overall["calibration_error"])
    first, second = (page.index(f">fedavg, rounds {run.result.rounds}</th>") for run in by_error)
    assert first < second
    assert "Last calibration error" in page


def test_unknown_metrics_are_refused(runs: dict[str, fedstill.Run], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unknown metric 'recall'"):
        fedstill.report(list(runs.values()), tmp_path / "page.html", metric="recall")
    assert not (tmp_path / "page.html").exists()


def test_runs_without_such_metrics_have_no_section() -> None:
    assert metrics_section({}).empty
