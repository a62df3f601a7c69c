from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest

from fedstill.audit import judge, read_table
from fedstill.audit.verdicts import Audit
from fedstill.core.errors import InputError
from fedstill.report import make_cloud, write_audit_report

Parse = Callable[[Path], Any]
FIGURES = [
    *("labelled", "free", "masking", "synergy", "against-teacher", "recovery", "leaderboard", "ceiling-0", "ceiling-1"),
    *("convergence", "epochs-best-labelled", "epochs-best-free", "epochs-worst-labelled", "epochs-worst-free"),
    *("teachers", "traffic", "compression", "size", "latency", "terms", "cloud-0"),
]


@pytest.fixture
def no_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of the page alone."""
    monkeypatch.setattr(import_module("fedstill.report.page_file"), "draw_files", lambda figures, folder: [])


@pytest.fixture(scope="module")
def page(large_report: Path, parse: Parse) -> Any:
    return parse(large_report)


@pytest.fixture(scope="module")
def specs(page: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(page.texts["specs"].split("\n")[0])
    return found


def test_every_figure_is_there_and_plotly_knows_every_property(page: Any, specs: dict[str, Any]) -> None:
    assert list(specs) == FIGURES
    drawn = [held["data-figure"] for held in page.all("div", "plot") + page.all("canvas", "cloud")]
    assert drawn == FIGURES
    for name, spec in specs.items():
        if not name.startswith("cloud"):
            go.Figure(**spec)


def test_every_figure_is_also_two_files(large_report: Path) -> None:
    folder = large_report.with_name("audit-figures")
    assert {path.name for path in folder.iterdir()} == {f"{name}.{kind}" for name in FIGURES for kind in ("svg", "png")}
    assert all((folder / f"{name}.png").read_bytes().startswith(b"\x89PNG") for name in FIGURES)
    assert "masked" in large_report.read_text(encoding="utf-8")
    assert "audit-figures" in large_report.read_text(encoding="utf-8")


def test_nothing_is_fetched(page: Any) -> None:
    for tag, held in page.elements:
        for name in ("src", "href", "srcset", "data", "action", "poster"):
            assert not held.get(name, "").lower().startswith(("http", "//")), (tag, held)
    assert "url(" not in page.texts[""].split("</style>")[0]
    policy = page.all("meta")[1]["content"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")


def test_it_can_be_used_without_eyes_or_mouse(page: Any) -> None:
    ids = [held["id"] for _, held in page.elements if "id" in held]
    assert len(ids) == len(set(ids))
    links = [held["href"] for held in page.all("a")]
    assert all(link.startswith("#") and link[1:] in ids for link in links)
    assert {"#verdicts", "#findings", "#grid", "#board", "#seeds", "#again"} <= set(links)
    for held in page.all("div", "plot") + page.all("canvas", "cloud"):
        assert held["role"] == "img"
        assert len(held["aria-label"]) > 40
    boxes = page.all("div", "frame") + page.all("div", "scroll") + page.all("pre", "scroll") + page.all("canvas")
    assert len(boxes) > 10
    assert all(box["tabindex"] == "0" and box["aria-label"] for box in boxes)
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


def test_the_summary_comes_first_and_findings_by_severity(page: Any, large: Audit, large_report: Path) -> None:
    text = page.texts["summary"].replace("\n", " ")
    for sentence in large.summary:
        assert sentence.replace("`", "") in text
    source = large_report.read_text(encoding="utf-8")
    assert source.index('id="summary"') < source.index('id="verdicts"') < source.index('id="findings"')
    levels = re.findall(r'<details class="note (\w+)"', source)
    assert len(levels) == len(large.findings)
    order = ["serious", "warning", "note"]
    assert levels == sorted(levels, key=order.index)
    assert len(set(levels)) == 3


def _value(value: float | None) -> str:
    return "" if value is None else str(value)


def _points(value: float | None) -> str:
    return "" if value is None else str(round(100 * value, 6))


def test_tables_say_what_the_audit_says(page: Any, large: Audit) -> None:
    pairs = {(row["teacher"], row["objective"]): row for row in page.rows("pairs")}
    assert len(pairs) == len(large.pairs) == 129
    for pair in large.pairs:
        row = pairs[pair.teacher, pair.objective]
        assert row["verdict"] == pair.word
        assert (row["labelled"], row["free"]) == (_value(pair.labelled), _value(pair.free))
        assert row["gain"] == _points(pair.gain)
        assert (row["masking"], row["synergy"]) == (_points(pair.masking), _points(pair.synergy))
        assert (row["recovery"], row["ceiling"]) == (_points(pair.recovery), _value(pair.ceiling))
        if pair.interval is not None:
            assert row["masking_low"] == _points(pair.interval.low)
    for verdict, row in zip(
        sorted(large.teachers, key=lambda each: each.teacher),
        sorted(page.rows("teachers"), key=lambda each: each["teacher"]),
        strict=True,
    ):
        assert (row["teacher"], row["verdict"], row["accuracy"]) == (
            verdict.teacher,
            verdict.word,
            _value(verdict.accuracy),
        )
    objectives = {row["objective"]: row for row in page.rows("objectives")}
    for each in large.objectives:
        row = objectives[each.objective]
        assert (row["pattern"], row["r_labelled"], row["r_free"]) == (
            each.pattern,
            _value(each.correlation),
            _value(each.free_correlation),
        )
        assert (row["range_labelled"], row["mean_labelled"]) == (_points(each.range), _value(each.mean))


def test_places_go_by_the_accuracy_with_labels_and_masked_ones_carry_a_mark_and_a_word(page: Any) -> None:
    rows = page.rows("pairs")
    placed = [row for row in rows if row["place"]]
    assert [int(row["place"]) for row in placed] == list(range(1, len(placed) + 1))
    accuracies = [float(row["labelled"]) for row in placed]
    assert accuracies == sorted(accuracies, reverse=True)
    assert all(row["labelled"] == "" for row in rows[len(placed) :])
    words = {row["verdict"] for row in page.rows("pairs", text=True)}
    assert "▲ masked" in words
    assert "? inconclusive" in words


def test_every_seed_is_in_a_table(page: Any, large: Audit) -> None:
    rows = {(row["teacher"], row["objective"], row["kind"]): row for row in page.rows("seeds")}
    for student in large.evidence.students:
        row = rows[student.teacher, student.objective, "without labels" if student.free else "with labels"]
        assert row[f"seed_{student.seed}"] == ("" if student.score is None else str(student.score.accuracy))
    for teacher in large.evidence.teachers:
        row = rows[teacher.name, "", "teacher"]
        assert row[f"seed_{teacher.seed}"] == ("" if teacher.score is None else str(teacher.score.accuracy))
    assert ("(none)", "", "labels only") in rows


def test_heatmaps_show_pairs_means_and_holes(specs: dict[str, Any], large: Audit) -> None:
    means, cells, holes = specs["labelled"]["data"]
    pairs = {(pair.teacher, pair.objective): pair for pair in large.pairs}
    teachers = [row.rsplit(" (", 1)[0] for row in cells["y"]]
    assert teachers[0] == "fedprox"  # the best first,
    assert cells["y"][-1] == "fedyogi (not finite)"  # and what has no accuracy last
    assert cells["x"][-4:] == ["feature", "attention", "sp", "rkd"]  # no weight on labels
    for teacher, values, texts in zip(teachers, cells["z"], cells["text"], strict=True):
        for objective, value, text in zip(cells["x"], values, texts, strict=True):
            pair = pairs.get((teacher, objective))
            assert value == (pair.labelled if pair else None)
            assert ("▲" in text) == (value is not None and pair is not None and pair.word == "masked")
    first = [row[0] for row in cells["z"] if row[0] is not None]
    assert means["y"][0] == pytest.approx(sum(first) / len(first))
    found = dict(zip(zip(holes["y"], holes["x"], strict=True), holes["customdata"], strict=True))
    assert found["feddyn (52.1)", "rkd"] == "the loss was not finite"
    assert found["moon (72.5)", "dkd"] == "not run"
    free = specs["free"]["data"][2]
    marks = dict(zip(zip(free["y"], free["x"], strict=True), free["text"], strict=True))
    assert marks["fedprox (77.1)", "crd"] == "n/a"


def test_recovery_is_ordered_and_from_the_worst_teacher_with_an_accuracy(specs: dict[str, Any], large: Audit) -> None:
    bars, words, free = specs["recovery"]["data"]
    assert bars["x"] == sorted(bars["x"], reverse=True)
    known = [verdict for verdict in large.teachers if verdict.accuracy is not None]
    worst = min(known, key=lambda verdict: verdict.accuracy or 0.0)
    assert worst.accuracy == 0.25
    assert len(bars["y"]) == 10
    assert all("masked" in text for text, value in zip(words["text"], bars["x"], strict=True) if value > 0.95)
    assert "crd" not in free["y"]
    lines = sorted(shape["x0"] for shape in specs["recovery"]["layout"]["shapes"])
    assert lines[0] == lines[1] == 0.25  # chance, and the teacher


def test_scatter_tells_labels_from_none_and_has_its_lines(specs: dict[str, Any]) -> None:
    data, shapes = specs["against-teacher"]["data"], specs["against-teacher"]["layout"]["shapes"]
    filled = [trace for trace in data if not trace["marker"]["symbol"].endswith("-open")]
    assert len(filled) == 10
    assert len(data) == 19  # contrast has no control
    assert shapes[0]["x0"] == shapes[0]["y0"] < min(x for trace in data for x in trace["x"])
    assert shapes[0]["x1"] == shapes[0]["y1"] >= max(y for trace in data for y in trace["y"])
    assert all(len(trace["error_y"]["array"]) == len(trace["y"]) for trace in data if "error_y" in trace)
    assert any("error_y" in trace for trace in data)
    assert shapes[1]["y0"] == pytest.approx(0.925, abs=0.01)


def test_rounds_that_are_not_finite_are_crossed(specs: dict[str, Any]) -> None:
    crosses = specs["convergence"]["data"][-1]
    assert crosses["name"] == "model not finite"
    assert crosses["x"] == list(range(6, 21))
    assert set(crosses["text"]) == {"fedyogi"}


def test_words_beside_bars_stand_clear_of_lines_and_whiskers(specs: dict[str, Any]) -> None:
    for name in ("recovery", "leaderboard", "teachers"):
        bars, words = specs[name]["data"][:2]
        (place,) = set(words["x"])
        assert all(shape["x0"] < place for shape in specs[name]["layout"]["shapes"])
        spreads = bars.get("error_x", {}).get("array", [0.0] * len(bars["x"]))
        assert all(value + spread < place for value, spread in zip(bars["x"], spreads, strict=True))
        assert specs[name]["layout"]["margin"]["r"] > 6 * max(map(len, words["text"]))


def test_terms_that_are_small_are_said_to_be(specs: dict[str, Any]) -> None:
    bars = specs["terms"]["data"][0]
    texts = dict(zip(bars["y"], bars["text"], strict=True))
    assert "below 1 %" in texts["rkd: rkd"]
    assert "below" not in texts["vanilla: cross-entropy"]


def test_commands_settings_and_versions_are_at_the_end(large_report: Path) -> None:
    source = large_report.read_text(encoding="utf-8")
    end = source[source.index('id="again"') :]
    assert "fedstill study clinical-grid --preset lite --variant seed" in end
    assert "heads, 1024 points" in end
    for name in ("fedstill", "Python", "torch", "numpy"):
        assert f"<dt>{name}</dt>" in end


def test_what_is_not_known_is_left_out(small: Audit, tmp_path: Path, parse: Parse) -> None:
    path = write_audit_report(small, tmp_path / "new" / "small.html")
    page = parse(path)
    specs = json.loads(page.texts["specs"].split("\n")[0])
    assert list(specs) == ["labelled", "free", "masking", "against-teacher", "recovery", "leaderboard", "teachers"]
    assert {path.stem for path in (tmp_path / "new" / "small-figures").iterdir()} == set(specs)
    assert "error_x" not in specs["leaderboard"]["data"][0]  # one seed has no spread
    assert "std" not in page.keys["seeds"]
    assert "No command is known" in path.read_text(encoding="utf-8")
    assert f"<title>Audit of {small.evidence.name}</title>" in path.read_text(encoding="utf-8")


@pytest.mark.usefixtures("no_files")
def test_the_page_changes_with_the_results(small: Audit, tmp_path: Path, parse: Parse) -> None:
    honest = tuple(
        replace(student, score=next(t.score for t in small.evidence.teachers if t.name == student.teacher))
        for student in small.evidence.students
    )
    other = judge(replace(small.evidence, students=honest))
    texts = []
    for number, audit in enumerate((small, other)):
        page = parse(write_audit_report(audit, tmp_path / f"{number}.html"))
        texts.append(page.texts["summary"])
        assert {row["verdict"] for row in page.rows("pairs")} == {pair.word for pair in audit.pairs}
    assert texts[0] != texts[1]


@pytest.mark.usefixtures("no_files")
def test_a_table_made_elsewhere_without_controls(tmp_path: Path, parse: Parse) -> None:
    table = tmp_path / "table.csv"
    rows = [f"{t},{o},1,{s},{a}" for t, a in (("a", 20), ("b", 80)) for o, s in (("x", 90), ("y", a))]
    table.write_text("\n".join(["teacher,objective,seed,accuracy,teacher_accuracy", *rows]))
    page = parse(write_audit_report(judge(read_table(table)), tmp_path / "r.html"))
    specs = json.loads(page.texts["specs"].split("\n")[0])
    assert "labelled" in specs
    assert "free" not in specs
    assert {row["verdict"] for row in page.rows("pairs")} == {pair.word for pair in judge(read_table(table)).pairs}


@pytest.mark.usefixtures("no_files")
def test_names_are_only_text(small: Audit, tmp_path: Path, parse: Parse) -> None:
    name = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'"
    teachers = tuple(replace(each, name=name) if each.name == "bad" else each for each in small.evidence.teachers)
    students = tuple(replace(each, teacher=name) if each.teacher == "bad" else each for each in small.evidence.students)
    audit = judge(replace(small.evidence, teachers=teachers, students=students, name=name))
    path = write_audit_report(audit, tmp_path / "r.html")
    page = parse(path)
    assert len(page.all("script")) == 4
    assert not page.all("img")
    assert "<script>alert" not in path.read_text(encoding="utf-8")
    specs = json.loads(page.texts["specs"].split("\n")[0])
    assert specs["teachers"]["data"][0]["y"][1].startswith("&lt;script&gt;")  # where Plotly would read markup


def test_clouds_are_thinned_centred_and_checked() -> None:
    points = np.arange(30_000, dtype=float).reshape(-1, 3)
    cloud = make_cloud("line", points, np.arange(10_000) % 2, most=100)
    assert len(cloud.points) == 100
    assert (cloud.points[0] == points[0]).all()
    assert (cloud.points[-1] == points[-1]).all()
    for wrong in (np.zeros((4, 2)), np.zeros((0, 3)), np.full((3, 3), np.nan)):
        with pytest.raises(InputError, match="cloud"):
            make_cloud("wrong", wrong)
    with pytest.raises(InputError, match="3 points and labels"):
        make_cloud("wrong", np.zeros((3, 3)), [1, 2])


def test_the_same_audit_gives_the_same_bytes(small: Audit, tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_audit_report(small, tmp_path / name / "audit.html")
    first, second = (sorted((tmp_path / name).rglob("*.*")) for name in ("a", "b"))
    assert len(first) > 2
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


@pytest.mark.usefixtures("no_files")
def test_teachers_alone_have_a_page_without_empty_tables(small: Audit, tmp_path: Path, parse: Parse) -> None:
    page = parse(write_audit_report(judge(replace(small.evidence, students=())), tmp_path / "r.html"))
    assert set(page.keys) == {"teachers", "seeds", "words"}
    assert list(json.loads(page.texts["specs"].split("\n")[0])) == ["teachers"]
