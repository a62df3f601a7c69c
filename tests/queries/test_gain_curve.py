"""Gain against forgetting, epoch by epoch and lambda by lambda."""

from __future__ import annotations

from pathlib import Path

import torch

from fedstill.queries.gain_curve import GainCurve, gain_curve
from fedstill.queries.query import Answered
from fedstill.report.static import draw_files

BEFORE = torch.tensor([0.8, 0.6, 0.0])


def made() -> GainCurve:
    """Two attempts of two epochs each; the second is slower in both."""
    curve = GainCurve(2.0, Answered(BEFORE, BEFORE, torch.tensor([30, 10, 0]), (2,)))
    starts = []
    for step in (1.0, 0.5):
        for phase in ("features", "head"):
            for epoch in (1, 2):
                change = step * epoch * torch.tensor([-0.1, 0.05, 0.3])
                starts.append(curve.add(phase, epoch, BEFORE + change))
    assert starts == [True, False, False, False] * 2
    return curve


def test_every_epoch_has_a_gain_and_a_forgetting() -> None:
    points = made().points
    assert [point.query_weight for point in points] == [2.0] * 4 + [1.0] * 4
    assert [round(point.gain, 4) for point in points] == [0.3, 0.6, 0.3, 0.6, 0.15, 0.3, 0.15, 0.3]
    assert [round(point.forgetting, 4) for point in points[:2]] == [-0.05, -0.1]  # a loses, b does not


def test_the_figure_has_a_line_for_each_lambda_and_phase_and_marks_what_was_kept(tmp_path: Path) -> None:
    curve = made().points
    figure = gain_curve("curve", "Curve", curve, (1.0, "head", 1), 5.0)
    assert [key.label for key in figure.keys] == [
        *("λ 2, whole model", "λ 2, head alone", "λ 1, whole model", "λ 1, head alone"),
        *("kept", "limit of 5 points, on held-out samples"),
    ]
    assert [len(trace["x"]) for trace in figure.data] == [2, 2, 2, 2, 1]
    assert (figure.data[-1]["x"], figure.data[-1]["y"]) == ([curve[6].forgetting], [curve[6].gain])
    assert figure.layout["shapes"][0]["x0"] == -0.05
    assert all(path.stat().st_size > 1000 for path in draw_files([figure], tmp_path))
    assert gain_curve("curve", "Curve", curve).layout["shapes"] == []
