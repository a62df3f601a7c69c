from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from html import escape
from pathlib import Path

import pytest
from matplotlib.axes import Axes

from fedstill.report import Holdings, write_report
from fedstill.report.figure import HATCHES, QUIET, SYMBOLS, Figure, Key, axis, label, level, names_axis
from fedstill.report.static import draw, draw_files, paint
from fedstill.report.study.marks import STUDENTS, TEACHERS, student_keys, teacher_keys
from fedstill.report.traces import HATCHES as DRAWN_HATCHES
from fedstill.report.traces import MARKERS
from fedstill.runtime.result import Run


def figure(data: list[dict[str, object]], layout: dict[str, object], keys: list[Key] | None = None) -> Figure:
    return Figure("one", "A title", "A sentence.", "A caption.", data, layout, keys or [])


def texts(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def test_bars_are_as_long_as_their_values_and_names_stay_in_order() -> None:
    bars = {
        "type": "bar",
        "orientation": "h",
        "x": [0.75, 0.5],
        "y": ["b &lt;1&gt;", "a"],
        "text": ["75", "50"],
        "error_x": {"array": [0.1, 0.2]},
        "marker": {"color": ["var(--masked)", "#123456"], "pattern": {"shape": ["/", ""]}},
    }
    layout = {"xaxis": axis("share", range=[0, 1]), "yaxis": names_axis(range=[1.5, -0.5]), "shapes": []}
    (axes,) = draw(figure([bars], {**layout, "shapes": [level(0.3, "var(--alarm)", upright=True)]})).axes
    assert [patch.get_width() for patch in axes.patches] == [0.75, 0.5]
    assert [patch.get_hatch() for patch in axes.patches] == ["///", ""]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["b <1>", "a"]
    assert texts(axes) == ["75", "50"]
    assert axes.get_xlim() == (0, 1)
    assert axes.get_ylim() == (1.5, -0.5)  # the first is on top
    assert any(list(line.get_xdata()) == [0.3, 0.3] for line in axes.lines)


def test_words_are_drawn_as_they_are(tmp_path: Path) -> None:
    """Two dollars are no formula, an entity in a key is no other sign, and a name may hold what breaks a line."""
    name = "a $x_ and $y^ &amp; <br>"
    bars = {"type": "bar", "orientation": "h", "x": [1, 2], "y": [label(name), "b<br>c"], "text": [label(name), ""]}
    bars["marker"] = {"color": "var(--ink)"}
    layout = {"xaxis": axis(name, type="log", range=[-2, 2]), "yaxis": names_axis()}
    one = figure([bars], layout, [Key(name, "var(--ink)", shape="box"), Key("?", QUIET, shape="text", symbol="?")])
    (axes,) = (canvas := draw(replace(one, title=name))).axes
    assert [text.get_text() for text in axes.get_yticklabels()] == [name, "b\nc"]
    assert axes.get_xlabel() == name
    assert canvas.legends[0].get_texts()[0].get_text() == name
    svg, _ = draw_files([replace(one, title=name)], tmp_path)
    letters = re.findall(r"<!-- (.*?) -->", svg.read_text(encoding="utf-8"))
    assert {"10⁻²", "10⁰", "10²"} <= set(letters), "decades as matplotlib writes them, in plain letters"
    assert letters.count(escape(name, quote=False)) == 5  # title, axis, tick, beside the bar, key


def test_ticks_with_names_are_drawn_as_they_are() -> None:
    layout = {"xaxis": axis("x", tickvals=[0], ticktext=["&lt;1"]), "yaxis": axis("y")}
    (axes,) = draw(figure([{"type": "bar", "x": [0], "y": [1], "marker": {"color": "var(--ink)"}}], layout)).axes
    assert [text.get_text() for text in axes.get_xticklabels()] == ["<1"]


def test_cells_have_their_texts_and_holes_have_none() -> None:
    cells = {
        "type": "heatmap",
        "x": ["x", "y"],
        "y": ["a"],
        "z": [[1.0, None]],
        "text": [["100", "hidden"]],
        "texttemplate": "%{text}",
        "colorscale": [[0, "#000000"], [1, "#ffffff"]],
        "zmin": 0,
        "zmax": 1,
    }
    above = {"type": "bar", "x": ["x", "y"], "y": [1.0, None], "yaxis": "y2", "marker": {"color": "var(--ink)"}}
    layout = {
        "xaxis": names_axis(),
        "yaxis": names_axis(domain=[0, 0.7]),
        "yaxis2": {"domain": [0.75, 1], "showticklabels": False},
    }
    top, bottom = draw(figure([above, cells], layout)).axes
    assert texts(bottom) == ["100"]
    assert bottom.texts[0].get_color() == paint("var(--ink)")  # dark on white
    assert len(top.patches) == 2


def test_every_verdict_has_a_hatch_that_pages_and_pictures_know() -> None:
    for key in [*teacher_keys(TEACHERS), *student_keys(STUDENTS)]:
        assert key.shape != "hatched" or key.outline
    assert {mark.hatch for mark in (*TEACHERS.values(), *STUDENTS.values())} <= {*DRAWN_HATCHES}


def test_every_marker_and_hatch_of_a_key_can_be_drawn() -> None:
    assert set(SYMBOLS) <= set(MARKERS)
    assert set(HATCHES) <= set(DRAWN_HATCHES)
    keys = [Key(name, "var(--ink)", shape="open", symbol=name) for name in SYMBOLS]
    keys += [Key(name, "var(--ink)", shape="hatched", symbol=name) for name in HATCHES]
    points = {"type": "scatter", "mode": "markers", "x": [1], "y": [2], "marker": {"color": "var(--ink)", "size": 5}}
    canvas = draw(figure([points], {"xaxis": axis("x"), "yaxis": axis("y")}, keys))
    assert len(canvas.legends[0].get_texts()) == len(keys)


def test_what_it_does_not_know_is_an_error_and_no_picture(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="violin"):
        draw_files([figure([{"type": "violin"}], {"xaxis": {}, "yaxis": {}})], tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_figures_of_runs_are_files_too(make_run: Callable[..., Run], tmp_path: Path) -> None:
    lost = [{"client": 1, "reason": "dropped", "detail": ""}]
    few = {"sampled": [5, 6], "accepted": [5], "failures": [{"client": 6, "reason": "failed", "detail": ""}]}
    runs = {
        "whole": make_run(),
        "holes": make_run(lines={2: {"accepted": [0, 2, 3], "failures": lost}, 3: {"finite": False}}),
        "many": make_run({"method": "fedavg", "clients": 1000}, lines={1: few, 2: few, 3: few}),
    }
    tables = {"whole": Holdings([[5, 0, 1], [2, 2, 2], [0, 0, 9], [1, 1, 1]], ("a", "b", "c"))}
    write_report(runs, tmp_path / "r.html", tables=tables, figures=tmp_path / "figures")
    names = {"accuracy", "loss", "traffic", "attendance-1", "attendance-2", "partition-0"}
    assert {path.stem for path in (tmp_path / "figures").glob("*.svg")} == names
    assert {path.stem for path in (tmp_path / "figures").glob("*.png")} == names
