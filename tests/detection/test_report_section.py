"""The page about detectors: its words, its table with traffic, and scenes to turn, also in a browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from base64 import b64encode
from collections.abc import Callable
from hashlib import sha256
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedstill.detection.report_section import detection_sections, detection_table
from fedstill.detection.scene_figure import Box, Finder, SceneView, scene_figure, thinned
from fedstill.detection.scene_stills import projected
from fedstill.report import write_report
from fedstill.report.facts import Facts
from fedstill.report.static import draw, draw_files
from fedstill.runtime.result import Run

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
CUBE, FAR = [0.0, 0, 0, 2, 2, 2, 0], [9.0, 9, 0, 2, 2, 2, 0]
POINTS = np.random.default_rng(0).uniform(-1.5, 1.5, (300, 3)).round(3).tolist()
SCENES = [
    {"boxes": [CUBE], "classes": [0], "points": POINTS},
    {"boxes": [CUBE, FAR], "classes": [0, 1], "points": POINTS},
    {"boxes": [], "classes": []},
]
FOUND = [
    {"boxes": [CUBE, FAR], "scores": [0.9, 0.4], "classes": [0, 0]},
    {"boxes": [CUBE, FAR], "scores": [0.8, 0.3], "classes": [0, 1]},
    {"boxes": [FAR], "scores": [0.02], "classes": [1]},
]
METRICS = {"accuracy": 0.5, "class_accuracy": 0.5, "map_25": 0.5, "map_50": 0.25, "ar_25": 0.75, "ar_50": 0.375}


@pytest.fixture
def detector(make_run: Callable[..., Run]) -> Callable[..., Run]:
    def make(method: Any = "fedavg", found: list[dict[str, Any]] | None = FOUND, lines: Any = None, **more: Any) -> Run:
        given = {"method": method, "model": "detr3d-lite", "points": 2048, **more}
        run = make_run(given, accuracies=(0.25, 0.5), lines=lines or {2: {"test": METRICS}})
        if found is not None:
            (run.path / "detections.json").write_text(json.dumps({"scenes": SCENES, "last": found}))
        return run

    return make


def facts(**runs: Run) -> list[Facts]:
    return [Facts.of(title, run) for title, run in runs.items()]


def test_the_table_has_precision_recall_and_bytes_of_a_round(detector: Callable[..., Run]) -> None:
    """The first round sends 1,000 bytes down that are sent once; without them it is 2,000 up and 5,000 down a round."""
    lines = {
        1: {"bytes": {"up": 1000, "down": 5000, "first_contact": 1000}},
        2: {"bytes": {"up": 3000, "down": 6000}, "test": METRICS},
    }
    plain = detector(found=None)
    table = detection_table(facts(careful=detector(lines=lines), plain=plain, pooled=detector("centralised")))
    keys = [column.key for column in table.columns]
    first, second, third = (dict(zip(keys, row, strict=True)) for row in table.cells)
    assert [first[key].value for key in ("map_25", "map_50", "ar_25", "ar_50")] == [0.5, 0.25, 0.75, 0.375]
    assert first["map_25"].text == "50.00\u00a0%"
    assert [first[key].value for key in ("up_round", "down_round", "down_first_contact")] == [2000, 5000, 1000]
    assert [second[key].value for key in ("up_round", "down_round", "down_first_contact")] == [4096, 8192, None]
    assert third["up_round"].value is None
    assert "first contact" in table.note
    assert "down_first_contact" not in [column.key for column in detection_table(facts(plain=plain)).columns]


def test_lines_of_an_ablation_differ_by_their_settings(detector: Callable[..., Run]) -> None:
    made = detector({"name": "fedavg", "weights": "uniform"})
    assert detection_table(facts(one=made)).rows[0][1] == "fedavg, weights uniform"


def test_only_detectors_have_such_sections(make_run: Callable[..., Run]) -> None:
    run = make_run()
    assert detection_sections({"plain": run}, facts(plain=run)) == []


def test_one_seed_stands_for_all_and_runs_without_detections_are_in_the_table(detector: Callable[..., Run]) -> None:
    runs = {f"seed {seed}": detector(seed=seed) for seed in range(3)} | {"alone": detector("local-only", None)}
    table, classes, scenes = detection_sections(runs, facts(**runs))
    assert len(table.tables[0].rows) == 4
    assert [key.label for key in classes.figures[1].keys][-1] == "mean over classes"  # so it is of one run
    assert classes.about.startswith("Drawn: “seed 0”. Of runs that differ in their seeds it is the first one")
    assert classes.about.endswith("Runs without a shared model, or evaluated where the data is, keep no boxes to draw.")
    assert [run["title"] for run in scenes.figures[0].data[0]["runs"]] == ["seed 0"]


def test_scenes_are_shared_by_runs_and_the_best_run_comes_first(detector: Callable[..., Run]) -> None:
    nothing = [{"boxes": [], "scores": [], "classes": []}] * 3
    runs = {"poor": detector(found=nothing), "good": detector("fedprox")}
    (figure,) = detection_sections(runs, facts(**runs))[2].figures
    trace = figure.data[0]
    assert [run["title"] for run in trace["runs"]] == ["good", "poor"]
    assert [scene["name"] for scene in trace["scenes"]] == ["test scene 1", "test scene 2"]  # those with points
    assert [box["owner"] for box in trace["runs"][0]["found"][0]] == [0, None]
    assert [box["look"] for box in trace["runs"][0]["found"][0]] == [1, 2]
    assert "“good” found 2 of 3 objects, and 0 boxes that are not right" in figure.sentence
    assert figure.turns == "scene"


def test_the_page_says_map_and_not_accuracy(detector: Callable[..., Run], tmp_path: Path) -> None:
    runs = {"first": detector(), "second": detector("fedprox", lines={2: {"test": METRICS | {"accuracy": 0.4}}})}
    page = write_report(runs, tmp_path / "page.html", tables={}, figures=tmp_path / "figures").read_text(
        encoding="utf-8"
    )
    text = re.sub(r"<(script|style)[^>]*>.*?</\1>", "", page, flags=re.DOTALL)
    assert "a mAP@0.25 of 50.0\u00a0%" in unescape(text)
    assert "Last mAP@0.25" in text
    assert "Test mAP@0.25 by round" in text
    assert "accuracy</button>" not in text  # no column of that name
    assert "samples right" not in text
    written = {path.stem for path in (tmp_path / "figures").glob("*.svg")}
    assert {"ap-25", "ap-50", "recall-25", "recall-50", "scenes-0", "accuracy", "loss"} <= written
    assert page.count("<canvas") == 1


def test_pages_of_classifiers_say_accuracy(make_run: Callable[..., Run], tmp_path: Path) -> None:
    page = write_report({"plain": make_run()}, tmp_path / "page.html", tables={}).read_text(encoding="utf-8")
    assert "Last accuracy" in page
    assert "of the test samples right" in page
    assert "mAP" not in re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)


def test_losses_of_one_detector_are_apart_and_of_several_together(detector: Callable[..., Run]) -> None:
    from fedstill.report.curves import curves

    terms = {"class": 2.0, "angle": 0.0, "giou": 1.0}
    lines = {number: {"loss": terms, "test": METRICS} for number in (1, 2)}
    runs = facts(one=detector(lines=lines), two=detector("fedprox", lines=lines))
    alone = next(figure for figure in curves(runs[:1]) if figure.id == "loss")
    assert [key.label for key in alone.keys] == ["one: class", "one: giou"]  # a term that is always 0 is left out
    assert alone.data[0]["line"]["color"] != alone.data[1]["line"]["color"]
    both = next(figure for figure in curves(runs) if figure.id == "loss")
    assert [trace["y"] for trace in both.data] == [[3.0, 3.0], [3.0, 3.0]]


def test_boxes_without_truth_look_like_their_classes(tmp_path: Path) -> None:
    found = [Box(CUBE, 1, 0.9), Box(FAR, 0, 0.5), Box(FAR, 2, 0.01)]
    view = SceneView("scan.ply", np.array(POINTS))
    figure = scene_figure("scan", "A scan", [view], [Finder("run", [found])], ("a", "b", "c"), looks="classes")
    trace = figure.data[0]
    assert [key.label for key in figure.keys] == ["a", "b", "points"]  # c is too unsure to be on any page
    assert [box["look"] for box in trace["runs"][0]["found"][0]] == [1, 0]
    assert trace["least"] == 50
    assert json.dumps(trace)
    (first, second) = draw_files([figure], tmp_path)
    assert (first.stat().st_size > 1000, second.stat().st_size > 1000) == (True, True)
    (axes,) = draw(figure).axes
    assert [text.get_text() for text in axes.texts] == ["b 0.90", "a 0.50"]


def test_clouds_are_thinned_evenly() -> None:
    points = np.arange(30_000.0).reshape(10_000, 3)
    some = thinned(points, 101)
    assert len(some) == 101
    assert (some[0] == points[0]).all()
    assert (some[-1] == points[-1]).all()
    assert (thinned(points[:50], 101) == points[:50]).all()


def test_stills_look_down_on_a_scene() -> None:
    """Higher is higher on paper and nearer; farther is higher on paper too."""
    low, high, far = projected(np.array([[0.0, 0, 0], [0, 0, 1], [np.sin(0.6), np.cos(0.6), 0]]))
    assert high[1] > low[1]
    assert high[2] < low[2]
    assert far[0] == pytest.approx(0)
    assert far[1] > low[1]
    assert far[2] > low[2]


PROBE = """
  const canvas = document.querySelector("canvas.scene");
  const controls = document.querySelector(".controls");
  const seen = [controls.hidden, canvas.dataset.boxes];
  const change = (name, value) => {
    const control = controls.querySelector(`[name="${name}"]`);
    control.value = value;
    control.dispatchEvent(new Event("input", { bubbles: true }));
    seen.push(canvas.dataset.boxes);
  };
  change("least", "20");
  change("scene", "1");
  change("run", "1");
  change("run", "0");
  document.querySelector('.key button[data-figure="scenes-0"]').click();
  seen.push(canvas.dataset.boxes);
  const before = canvas.dataset.view;
  canvas.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowLeft" }));
  seen.push(canvas.dataset.view !== before);
  const drawn = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  seen.push(drawn.filter((value, at) => at % 4 === 3 && value > 0).length > 500);
  seen.push(document.documentElement.scrollWidth - document.documentElement.clientWidth);
  document.getElementById("probe").textContent = seen.join(" ");
"""


@pytest.mark.skipif(CHROMIUM is None, reason="no browser found: install chromium to test the drawn page")
def test_scenes_in_a_browser(detector: Callable[..., Run], tmp_path: Path) -> None:
    """Of scene 1: one true box, and found ones with scores 0.9 and 0.4. Of scene 2: two, found with 0.8 and 0.3."""
    nothing = [{"boxes": [], "scores": [], "classes": []}] * 3
    page = write_report({"good": detector(), "poor": detector("fedprox", nothing)}, tmp_path / "page.html", tables={})
    known = b64encode(sha256(PROBE.encode()).digest()).decode()
    text = page.read_text(encoding="utf-8").replace("script-src ", f"script-src 'sha256-{known}' ", 1)
    page.write_text(text.replace("</body>", f'<pre id="probe"></pre><script>{PROBE}</script></body>'), encoding="utf-8")
    done = subprocess.run(
        [
            str(CHROMIUM),
            *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage"),
            *("--disable-background-networking", "--enable-logging=stderr", "--v=0", "--virtual-time-budget=5000"),
            *("--window-size=500,900", f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", page.as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "CONSOLE" not in done.stderr
    found = re.search(r'<pre id="probe">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found is not None
    hidden, at_first, unsure, second, poor, good, switched, turned, drawn, overflow = found[1].split()
    assert (hidden, at_first, unsure) == ("false", "2", "3")
    assert (second, poor, good) == ("4", "2", "4")
    assert switched == "2"  # without true boxes
    assert (turned, drawn, overflow) == ("true", "true", "0")
