"""From a recipe to a verdict and a page, as a user would go."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from shutil import copytree

from fedstill.report.writer import left_out

Call = Callable[..., tuple[int, str, str]]


def test_a_study_its_audit_and_its_page(call: Call) -> None:
    """Two teachers and four objectives on built-in heads; the page says what the audit says."""
    code, out, err = call("study", "clinical-grid", "--preset", "tiny", "--dry-run")
    assert (code, err) == (0, "")
    assert "3 runs without a teacher and 8 students, 11 runs, 0 done" in " ".join(out.split())
    code, out, err = call("study", "clinical-grid", "--preset", "tiny", "--quiet")
    assert code == 0, err
    assert "n/a" in out  # crd without labels
    results = Path("runs/clinical-grid-tiny.json")
    code, out, err = call("audit", str(results), "--json", "--quiet")
    assert code == 0, err
    verdict = json.loads(out)
    assert len(verdict["pairs"]) == 6
    assert {pair["word"] for pair in verdict["pairs"] if pair["objective"] == "crd"} == {"not assessable"}
    assert call("audit", str(results), "--fail-on", "not-assessable")[0] == 3
    code, out, err = call("report", "runs")
    assert code == 0, err
    page = Path("runs/clinical-grid-tiny.html").read_text()
    assert verdict["summary"][0].split(".")[0] in page
    assert "small-pointnet-tiny" in page  # what models cost
    assert "fedstill study clinical-grid --preset tiny" in page
    assert list(Path("runs/clinical-grid-tiny-figures").glob("*.svg"))
    assert left_out([Path("runs")]) is None
    copytree(next(Path("runs").glob("fedavg-*")), "runs/one of another study")
    assert "and not about one other run in runs" in str(left_out([Path("runs")]))


def test_runs_without_a_study_have_a_page_too(call: Call) -> None:
    for method in ("fedavg", "centralised"):
        assert call("run", method, "--rounds", "1", "--clients", "2", "--set", "epochs=1", "--quiet")[0] == 0
    code, out, err = call("report", "runs", "--out", "page.html")
    assert code == 0, err
    assert "page.html" in out.replace("\n", "")
    assert "centralised" in Path("page.html").read_text()
    Path("pages").mkdir()
    code, _, err = call("report", "runs", "--out", "pages")
    assert (code, "pages is a folder" in err) == (2, True)
    code, _, err = call("report", "nowhere")
    assert code == 2
    assert "there is no finished run in nowhere" in err


TEACHERS_ALONE = """
about: Two methods, and nobody who learns from them.
experiment: {data: digits, model: mlp, clients: 2, rounds: 1, training: {epochs: 1, batch: 64}}
grid: {method: [fedavg, fedprox], seed: [7]}
"""


def test_of_a_study_without_students_the_runs_are_reported(call: Call) -> None:
    Path("small.yaml").write_text(TEACHERS_ALONE)
    assert call("study", "small.yaml", "--results", "runs/small.json", "--quiet")[0] == 0
    code, _, err = call("report", "runs", "--out", "page.html")
    assert (code, err) == (0, "")
    page = Path("page.html").read_text()
    assert "fedavg" in page
    assert "fedprox" in page
    # Named by itself, or without its runs, there is nothing to audit in it.
    assert "has no students" in call("report", "runs/small.json")[2]
    Path("bare").mkdir()
    Path("runs/small.json").rename("bare/small.json")
    assert "has no students" in call("report", "bare")[2]
