"""Runs beside each other, and their figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import fedstill
from fedstill.core.errors import InputError
from fedstill.runtime.result import Run

from .conftest import MakeRun


def edited(run: Run, **changes: Any) -> Run:
    """The same run with another configuration."""
    path = run.path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return Run(run.path)


def unfinished(run: Run) -> Run:
    (run.path / "result.json").unlink()
    return Run(run.path)


def test_settings_that_differ_and_figures(make_run: MakeRun) -> None:
    slow, fast = make_run({"method": "fedavg", "seed": 7}), make_run({"method": "fedprox", "seed": 7}, (0.9, 0.8))
    comparison = fedstill.compare({"slow": slow, "fast": fast})
    assert comparison["name"] == ["slow", "fast"]
    assert comparison["method"] == ["fedavg", "fedprox"]
    assert "seed" not in comparison.rows[0]
    assert comparison["rounds"] == [3, 2]
    assert comparison["accuracy"] == [0.9, 0.8]
    assert comparison["best_accuracy"] == [0.9, 0.9]
    assert comparison["bytes_up"] == [3 * 4096, 2 * 4096]
    assert comparison["seconds"] == pytest.approx([3.3, 2.2])
    assert comparison["note"] == ["", ""]
    assert len(comparison) == 2
    frame = comparison.to_pandas()
    assert frame.loc["fast", "accuracy"] == 0.8
    assert frame.loc["slow", "method"] == "fedavg"


def test_runs_on_other_data_and_unfinished_ones_get_a_note(make_run: MakeRun) -> None:
    other = edited(make_run(), fingerprint="0" * 64)
    comparison = fedstill.compare({"a": make_run(), "b": other, "c": unfinished(make_run(accuracies=(0.5, 0.75, 0.6)))})
    assert comparison["note"] == ["", "not the data of a", "not finished: 3 rounds in all"]
    assert comparison["accuracy"][2] == 0.6
    assert comparison["best_accuracy"][2] == 0.75
    assert "not the data of a" in str(comparison)


def test_runs_can_be_named_by_folders_and_by_a_folder_of_them(make_run: MakeRun, tmp_path: Path) -> None:
    first = make_run({"method": "fedavg", "seed": 7})
    second = make_run({"method": "fedavg", "seed": 8})
    names = list(fedstill.compare([first, str(second.path)]).runs)
    assert names == ["fedavg, seed 7", "fedavg, seed 8"]
    assert list(fedstill.compare(tmp_path / "runs").runs) == names
    assert list(fedstill.compare(first).runs) == ["fedavg"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="there is no run in"):
        fedstill.compare(tmp_path / "empty")
    with pytest.raises(InputError, match="at least one run"):
        fedstill.compare([])


@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_text_fits_the_terminal(width: int, make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    given = {"partition": {"name": "dirichlet", "alpha": 0.25}, "seed": 9, "training": {"rate": 0.5, "epochs": 3}}
    comparison = fedstill.compare({"one of them": make_run(), "the other": make_run({"method": "fedprox", **given})})
    text = str(comparison)
    assert max(map(len, text.splitlines())) <= width
    whole_words = ("fedprox", "dirichlet", "0.25", "90.00\xa0%") if width >= 80 else ("fedprox", "90.00\xa0%")
    for word in ("Rounds", *whole_words):
        assert word in text


def test_names_are_escaped_and_repr_is_one_line(make_run: MakeRun) -> None:
    comparison = fedstill.compare({"<script>alert(1)</script>": make_run()})
    assert "<script" not in comparison._repr_html_()
    assert "&lt;script&gt;" in comparison._repr_html_()
    assert repr(comparison) == "Comparison(one run: <script>alert(1)</script>)"


def test_curves_of_one_run_and_of_several(make_run: MakeRun) -> None:
    run = make_run()
    figure = run.plot()
    left, right = figure.axes
    assert left.lines[0].get_ydata().tolist() == [0.5, 0.7, 0.9]
    assert right.lines[0].get_ydata().tolist() == pytest.approx([2.0, 1.0, 2 / 3])
    assert figure._repr_png_().startswith(b"\x89PNG")
    both = fedstill.compare({"a $x$": run, "b": unfinished(make_run("fedprox", (0.1, 0.2)))}).plot()
    drawn = [{tuple(line.get_ydata()) for line in axes.lines} for axes in both.axes]
    assert drawn[0] == {(0.5, 0.7, 0.9), (0.1, 0.2)}
    assert drawn[1] == {(2.0, 1.0, 2 / 3), (2.0, 1.0)}
    assert [text.get_text() for text in both.legends[0].get_texts()] == ["a $x$", "b"]


def test_without_a_round_there_is_nothing_to_plot(make_run: MakeRun) -> None:
    run = unfinished(make_run())
    (run.path / "journal.jsonl").unlink()
    with pytest.raises(InputError, match="nothing to plot"):
        run.plot()
