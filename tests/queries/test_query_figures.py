"""Figures about queries say what they were given, and can be drawn to files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedstill.core.errors import InputError
from fedstill.queries.probe import Probed
from fedstill.queries.probe_rule import ProbeRule
from fedstill.queries.query_figures import (
    Balance,
    Course,
    gain_against_forgetting,
    offered_figure,
    phases,
    probe_figure,
    recall_changes,
    recall_map,
)
from fedstill.report.feature_maps import Features, Plane, feature_maps
from fedstill.report.figure import Figure
from fedstill.report.static import draw_files


def drawn(figure: Figure, folder: Path) -> None:
    assert [path.name for path in draw_files([figure], folder)] == [f"{figure.id}.svg", f"{figure.id}.png"]


def test_gain_stands_above_and_little_forgetting_to_the_right(tmp_path: Path) -> None:
    balances = [Balance("KD", [(-0.1, 0.2)]), Balance("QKT", [(-0.2, 0.7), (-0.4, 0.9)], index=5)]
    figure = gain_against_forgetting("balance", "Both", balances)
    means = [(trace["x"], trace["y"]) for trace in figure.data if len(trace["x"]) == 1]
    assert means == [([-0.1], [0.2]), ([pytest.approx(-0.3)], [pytest.approx(0.8)])]
    assert figure.data[2]["x"] == [-0.2, -0.4]
    assert [key.traces for key in figure.keys] == [(0,), (1, 2)]
    assert figure.keys[1].colour == "var(--series-6)"
    assert "QKT gains 80.0\u00a0points and forgets 30.0\u00a0points" in figure.sentence
    drawn(figure, tmp_path)
    path = gain_against_forgetting("path", "Lambda", balances, path=True)
    assert path.data[0]["mode"] == "lines"
    assert [key.traces for key in path.keys] == [(1,), (2, 3)]


def test_noise_beside_the_truth(tmp_path: Path) -> None:
    """Errors by hand: the first client's guess is off by 0.1 in two of three classes, the second's by none; four of its
    five finds are right, and of five classes that clients have four are found."""
    true = np.array([[0.6, 0.4, 0.0], [0.5, 0.3, 0.2]])
    guessed = np.array([[0.5, 0.4, 0.1], [0.5, 0.5, 0.0]])
    probed = Probed((0, 3), ("a", "b", "a long name of a class"), true, guessed, guessed, ProbeRule("threshold"))
    assert probed.errors.tolist() == pytest.approx([0.02 / 3, 0.08 / 3])
    assert (probed.precision, probed.recall) == (0.8, 0.8)
    figure = probe_figure("probe", "Clients", probed)
    assert [trace["z"] for trace in figure.data] == [true.tolist(), guessed.tolist()]
    assert figure.layout["yaxis"]["ticktext"] == ["0", "3"]
    assert figure.layout["yaxis2"]["ticktext"] == ["0.007", "0.027"]
    assert "finds 80\u00a0% of the classes" in figure.caption
    drawn(figure, tmp_path)


def test_classes_are_told_by_whose_they_are(tmp_path: Path) -> None:
    figure = recall_changes(
        "classes", "Client 3", "abcd", [0.9, 0, 0.5, 0], [0.6, 0, 0.5, 0.8], own=[0, 2], asked=[3, 2]
    )
    names = figure.layout["yaxis"]["ticktext"]
    lines = [(names[trace["y"][0]], trace["x"]) for trace in figure.data if trace["mode"] == "lines"]
    assert lines == [("c", [0.5, 0.5]), ("d", [0, 0.8]), ("a", [0.9, 0.6]), ("b", [0, 0])]
    assert [key.label for key in figure.keys] == [
        *("class asked for", "client's own class", "neither", "before", "after")
    ]
    assert "d (asked for) from 0\u00a0% to 80\u00a0%" in figure.sentence
    drawn(figure, tmp_path)


def test_names_that_begin_alike_stay_apart(tmp_path: Path) -> None:
    """Both are cut to 18 letters; each keeps a place of its own, and its whole name where there is room."""
    names = ("immature granulocytes", "immature granulocytes (all kinds)")
    values = np.array([[0.6, 0.4]])
    figure = probe_figure("probe", "Clients", Probed((0,), names, values, values, values, ProbeRule("threshold")))
    assert [trace["x"] for trace in figure.data] == [[0, 1], [0, 1]]
    assert figure.layout["xaxis2"]["ticktext"] == ["immature granuloc…"] * 2
    assert figure.data[0]["customdata"] == [list(names)]
    drawn(figure, tmp_path)
    figure = recall_changes("classes", "Client", names, [0.5, 0.6], [0.7, 0.8], own=[0], asked=[1])
    assert sorted({y for trace in figure.data for y in trace["y"]}) == [0, 1]
    drawn(figure, tmp_path)


def test_a_seed_is_told_after_the_name_whatever_is_in_it() -> None:
    figure = gain_against_forgetting("balance", "Both", [Balance("rate: 0.1", [(-0.2, 0.7), (-0.4, 0.9)])])
    mean, seeds = (trace["hovertemplate"] for trace in figure.data)
    assert mean.startswith("rate: 0.1: forgetting")
    assert seeds.startswith("rate: 0.1, a seed: forgetting")


def test_epochs_of_both_phases_follow_each_other(tmp_path: Path) -> None:
    course = Course("accuracy", 0.3, [0.5, 0.4], [0.6, 0.7, 0.7])
    figure = phases("phases", "By epoch", [course])
    (curve,) = figure.data
    assert (curve["x"], curve["y"]) == ([0, 1, 2, 3, 4, 5], [0.3, 0.5, 0.4, 0.6, 0.7, 0.7])
    assert {shape.get("x0") for shape in figure.layout["shapes"]} == {2.5, 0}
    drawn(figure, tmp_path)
    shorter = Course("client 2", 0.2, [0.4], [0.5])
    both = phases("phases", "By epoch", [course, shorter])
    assert both.data[1]["x"] == [0, 1, 3], "heads begin together"
    without = phases("phases", "By epoch", [Course("accuracy", 0.3, [0.5], [])])
    assert [shape["y0"] for shape in without.layout["shapes"]] == [0.3]


def test_the_plane_is_that_of_the_main_axes() -> None:
    """Points along two directions of a space of four; the third, which varies least, is what is left out."""
    generator = np.random.default_rng(0)
    scores = generator.normal(size=(200, 3)) * [5.0, 2.0, 0.1]
    turned = np.linalg.qr(generator.normal(size=(4, 4)))[0][:3]
    features = scores @ turned + 7.0
    plane = Plane.through(features)
    values = np.sort(np.linalg.eigvalsh(np.cov(features.T)))[::-1]
    assert plane.explained == pytest.approx(values[:2].sum() / values.sum())
    places = plane.places(features)
    assert np.cov(places.T).diagonal() == pytest.approx(values[:2])
    assert np.abs(plane.features(places) - features).max() < 1.0
    assert plane.places(plane.features(places)) == pytest.approx(places)


def features(title: str, shift: float) -> Features:
    """Two groups on both sides of a line; the head says 0 to the left of `shift`, else 2."""
    generator = np.random.default_rng(1)
    labels = np.repeat([0, 2], 50)
    points = generator.normal(size=(100, 2)) * [0.5, 1.0] + np.stack([4.0 * labels - 4.0, 0 * labels], axis=1)
    return Features(title, points, labels, lambda found: np.where(found[:, 0] < shift, 0, 2))


def test_regions_are_what_the_head_says(tmp_path: Path) -> None:
    figure = feature_maps("features", "Client 3", [features("before", 100.0), features("after", 0.0)], ["a", "b", "c"])
    grounds = [trace for trace in figure.data if trace["type"] == "heatmap"]
    assert {value for row in grounds[0]["z"] for value in row} == {0}
    assert {value for row in grounds[1]["z"] for value in row} == {0, 1}, "classes by their place in the key"
    assert [key.label for key in figure.keys] == ["a", "c"]
    assert figure.keys[1].traces == (2, 5)
    assert "after: the plane holds 100\u00a0% of the variance, and 100\u00a0% of samples stand" in figure.sentence
    drawn(figure, tmp_path)
    other = features("after", -100.0)
    grey = Features("after", other.features, other.labels, lambda found: np.full(len(found), 1))
    assert feature_maps("features", "", [other, grey], "abc").keys[-1].label == "region of another class"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"features": np.zeros((100, 1))}, "needs samples and channels"),
        ({"labels": np.zeros(3, dtype=int)}, "need as many labels"),
        ({"features": np.full((100, 2), np.nan)}, "not all finite"),
        ({"labels": np.full(100, 3)}, "not all among the 3 names"),
    ],
    ids=["flat", "labels", "finite", "names"],
)
def test_features_that_cannot_be_mapped(change: dict[str, np.ndarray], says: str) -> None:
    usual = features("before", 0.0)
    given = {"features": usual.features, "labels": usual.labels, **change}
    with pytest.raises(InputError, match=says):
        feature_maps("features", "", [Features("before", **given, classify=usual.classify), usual], "abc")


def test_four_panels_make_two_rows_that_do_not_overlap(tmp_path: Path) -> None:
    figure = feature_maps("features", "", [features(title, 0.0) for title in "abcd"], "abc")
    parts = [(figure.layout[f"xaxis{end}"]["domain"], figure.layout[f"yaxis{end}"]["domain"]) for end in ("", 2, 3, 4)]
    assert parts == [
        ([0.0, 0.48], [0.56, 1.0]),
        ([0.52, 1.0], [0.56, 1.0]),
        ([0.0, 0.48], [0.0, 0.44]),
        ([0.52, 1.0], [0.0, 0.44]),
    ]
    drawn(figure, tmp_path)


def test_recall_of_each_class_by_model(tmp_path: Path) -> None:
    figure = recall_map("recalls", "", ["cat", "dog"], {"before": [0.9, 0.0], "after": [0.7, 0.8]}, "dog")
    assert figure.data[0]["z"] == [[0.9, 0.0], [0.7, 0.8]]
    assert "before 45.0\u00a0% and after 75.0\u00a0%" in figure.sentence
    drawn(figure, tmp_path)


def test_offered_models_are_shown_by_name_and_without_data_that_nobody_knows(tmp_path: Path) -> None:
    said = [[0.7, 0.1, 0.2], [0.0, 0.05, 0.95]]
    figure = offered_figure("probe", "What the models say", ["north <1>", "south"], ["ash", "birch", "cedar"], said)
    (trace,) = figure.data
    assert trace["z"] == said
    assert figure.layout["yaxis"]["ticktext"] == ["north &lt;1&gt;", "south"]
    assert "north <1>: ash and south: cedar" in figure.sentence
    drawn(figure, tmp_path)
