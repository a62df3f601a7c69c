"""Detections judged again from what a run kept, and the figures made of them.

Two scenes, three classes of which the last has no object. There is a cube `a` of side 2 at the origin of both scenes,
and in the first one also a cube `b` of side 1. Found are, of class a: both cubes exactly (scores 0.9 and 0.6) and
something far away (0.8); of class b a cube moved by half its side (0.7), which shares 1/2 of 3/2 with the true one: an
IoU of 1/3, right at 0.25 and wrong at 0.5. So

    a   right, wrong, right of two objects: half of the recall at precision 1, half at 2/3, AP = 5/6
    b   AP = 1 at 0.25 and 0 at 0.5
    mAP = 11/12 at 0.25 and 5/12 at 0.5
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from fedstill.detection.precision_figures import precision_by_class, precision_by_recall
from fedstill.detection.report_facts import Judged, envelope, judged, mean_envelope, owners
from fedstill.report.static import draw
from fedstill.runtime.result import Run

A, B = [0.0, 0, 0, 2, 2, 2, 0], [5.0, 0, 0, 1, 1, 1, 0]
FAR, MOVED = [9.0, 9, 0, 2, 2, 2, 0], [5.5, 0, 0, 1, 1, 1, 0]
SCENES = [{"boxes": [A, B], "classes": [0, 1]}, {"boxes": [A], "classes": [0]}]
FOUND = [
    {"boxes": [A, FAR, MOVED], "scores": [0.9, 0.8, 0.7], "classes": [0, 0, 1]},
    {"boxes": [A], "scores": [0.6], "classes": [0]},
]
DETECTOR = {"method": "fedavg", "model": "detr3d-lite"}


def keep(run: Run, found: list[dict[str, Any]] = FOUND, scenes: list[dict[str, Any]] = SCENES) -> Run:
    (run.path / "detections.json").write_text(json.dumps({"scenes": scenes, "last": found}))
    return run


@pytest.fixture
def one(make_run: Callable[..., Run]) -> Judged:
    found = judged("one", 0, keep(make_run(DETECTOR)))
    assert found is not None
    return found


def test_average_precision_by_hand(one: Judged) -> None:
    assert one.precisions(0) == [pytest.approx(5 / 6), 1.0, None]
    assert one.precisions(1) == [pytest.approx(5 / 6), 0.0, None]
    assert one.mean(0) == pytest.approx(11 / 12)
    assert one.mean(1) == pytest.approx(5 / 12)
    assert one.objects() == [2, 1, 0]
    assert owners(SCENES[0], FOUND[0]) == [0, None, 1]
    assert owners({"boxes": [], "classes": []}, FOUND[0]) == [None, None, None]


def test_curves_by_hand(one: Judged) -> None:
    assert envelope(one.steps[0][0]) == [
        (0.0, 1.0),
        (0.5, 1.0),
        (0.5, pytest.approx(2 / 3)),
        (1.0, pytest.approx(2 / 3)),
    ]
    assert envelope(one.steps[0][2]) == []
    mean = dict(mean_envelope(one.steps[0], places=4))
    assert mean == {0.0: 1.0, 0.25: 1.0, 0.5: 1.0, 0.75: pytest.approx(5 / 6), 1.0: pytest.approx(5 / 6)}
    half = dict(mean_envelope(one.steps[1], places=4))  # nothing of class b is right there
    assert half == {0.0: 0.5, 0.25: 0.5, 0.5: 0.5, 0.75: pytest.approx(1 / 3), 1.0: pytest.approx(1 / 3)}


def test_the_area_below_a_staircase_is_its_average_precision(one: Judged) -> None:
    for row in range(2):
        for steps, precision in zip(one.steps[row], one.precisions(row), strict=True):
            corners = envelope(steps)
            area = sum((x1 - x0) * y1 for (x0, _), (x1, y1) in pairwise(corners))
            assert area == pytest.approx(precision or 0.0)


def test_a_run_that_kept_no_detections_has_none(make_run: Callable[..., Run]) -> None:
    assert judged("none", 0, make_run(DETECTOR)) is None
    assert judged("none", 0, keep(make_run(DETECTOR), scenes=[])) is None


def test_bars_of_one_run_show_both_thresholds_and_only_classes_that_occur(one: Judged) -> None:
    (figure,) = precision_by_class([one])
    first, second = figure.data
    assert first["x"] == [pytest.approx(5 / 6), 1.0]
    assert second["x"] == [pytest.approx(5 / 6), 0.0]
    assert figure.layout["yaxis"]["ticktext"] == ["a (2)", "b (1)"]
    assert [key.shape for key in figure.keys] == ["box", "hatched"]  # not by colour alone
    assert "mean 91.7\u00a0%" in figure.sentence
    tops = [one_bar.get_y() + one_bar.get_height() for one_bar in draw(figure).axes[0].patches]
    bottoms = [one_bar.get_y() for one_bar in draw(figure).axes[0].patches]
    assert tops[0] <= bottoms[2] + 1e-9  # beside each other, not over each other


def test_several_runs_have_a_figure_for_each_threshold_in_their_own_colours(
    make_run: Callable[..., Run], one: Judged
) -> None:
    nothing = [{"boxes": [], "scores": [], "classes": []}] * 2
    other = judged("other", 3, keep(make_run(DETECTOR), nothing))
    assert other is not None
    bars = precision_by_class([one, other])
    assert [figure.id for figure in bars] == ["ap-25", "ap-50"]
    assert bars[0].data[1]["x"] == [0.0, 0.0]
    assert [trace["marker"]["color"][0] for trace in bars[0].data] == ["var(--series-1)", "var(--series-4)"]
    curves = precision_by_recall([one, other])
    assert [figure.id for figure in curves] == ["recall-25", "recall-50"]
    assert len(curves[0].data) == 1
    assert "Of “other” nothing was right." in curves[0].caption
    assert "mean average precision of 91.7" in curves[0].sentence


def test_curves_of_one_run_are_of_classes_and_their_mean(one: Judged, tmp_path: Path) -> None:
    quarter, half = precision_by_recall([one])
    assert [key.label for key in quarter.keys] == ["a", "b", "mean over classes"]
    assert quarter.data[0]["x"] == [0.0, 0.5, 0.5, 1.0]
    assert [key.label for key in half.keys] == ["a", "mean over classes"]
    assert "Nothing right was found of b." in half.caption
    for figure in (quarter, half):
        assert len(draw(figure).axes[0].lines) == len(figure.data)


def test_equal_results_whatever_order_detections_are_in(make_run: Callable[..., Run], one: Judged) -> None:
    turned = [{name: column[::-1] for name, column in scene.items()} for scene in FOUND]
    again = judged("again", 0, keep(make_run(DETECTOR), turned))
    assert again is not None
    assert [again.precisions(row) for row in range(2)] == [one.precisions(row) for row in range(2)]
