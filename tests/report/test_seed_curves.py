"""The figure of accuracy over seeds: who belongs together, and how far seeds are apart."""

from __future__ import annotations

from collections.abc import Callable

import plotly.graph_objects as go
import pytest

from fedstill.report.facts import Facts
from fedstill.report.seed_curves import grouped, loss_over_seeds, seed_curves, spread_by_round
from fedstill.report.static import draw
from fedstill.runtime.result import Run

MakeRun = Callable[..., Run]


@pytest.fixture
def runs(make_run: MakeRun) -> list[Facts]:
    """Two seeds of one method, and one of another."""
    given = [("fedavg", 0, (0.5, 0.7)), ("fedavg", 1, (0.3, 0.8)), ("fedprox", 0, (0.2, 0.4))]
    made = [make_run({"method": method, "seed": seed}, scores) for method, seed, scores in given]
    return [Facts.of(str(number), run) for number, run in enumerate(made)]


def test_runs_that_differ_in_their_seed_alone_are_one_curve(runs: list[Facts]) -> None:
    assert {title: len(group) for title, group in grouped(runs).items()} == {"fedavg": 2, "fedprox": 1}


def test_the_band_reaches_from_the_lowest_to_the_highest(runs: list[Facts]) -> None:
    assert spread_by_round(runs[:2]) == [(1, 0.4, 0.3, 0.5), (2, 0.75, 0.7, 0.8)]
    (figure,) = seed_curves(runs)
    mean, band, alone = figure.data
    assert mean["y"] == [0.4, 0.75]
    assert list(zip(band["x"], band["y"], strict=True)) == [(1, 0.5), (2, 0.8), (2, 0.7), (1, 0.3)]
    assert alone["y"] == [0.2, 0.4]
    low, high = figure.layout["yaxis"]["range"]
    assert low < 0.2
    assert 0.8 < high < 1
    assert "from the lowest to the highest" in figure.caption
    assert figure.keys[0].traces == (0, 1)
    assert go.Figure(figure.data, {"xaxis": figure.layout["xaxis"], "yaxis": figure.layout["yaxis"]})


def test_the_band_is_in_the_file_as_well(runs: list[Facts]) -> None:
    (figure,) = seed_curves(runs)
    (axes,) = draw(figure).axes
    assert len(axes.patches) == 1


def test_a_round_that_one_seed_has_not_measured_is_left_out(make_run: MakeRun) -> None:
    made = [make_run({"method": "fedavg", "seed": seed}, scores) for seed, scores in enumerate([(0.5, 0.7), (0.4,)])]
    runs = [Facts.of(str(number), run) for number, run in enumerate(made)]
    assert [at for at, *_ in spread_by_round(runs)] == [1]


def test_without_several_seeds_there_is_no_such_figure(runs: list[Facts]) -> None:
    assert seed_curves(runs[1:]) == []


def test_a_run_that_is_named_twice_is_no_second_seed(runs: list[Facts]) -> None:
    assert seed_curves([runs[0], runs[0]]) == []


def test_the_training_loss_has_its_spread_too(make_run: MakeRun) -> None:
    given = {0: (2.0, 1.0), 1: (3.0, 0.5)}
    made = [
        make_run(
            {"method": "fedavg", "seed": seed},
            (0.5, 0.6),
            lines={round: {"loss": {"cross-entropy": loss}} for round, loss in enumerate(losses, 1)},
        )
        for seed, losses in given.items()
    ]
    (figure,) = loss_over_seeds([Facts.of(str(number), run) for number, run in enumerate(made)])
    mean, band = figure.data
    assert mean["y"] == [2.5, 0.75]
    assert list(zip(band["x"], band["y"], strict=True)) == [(1, 3.0), (2, 1.0), (2, 0.5), (1, 2.0)]
    assert "0.750 (0.500 to 1.000)" in figure.sentence
    assert loss_over_seeds([Facts.of("alone", made[0])]) == []
