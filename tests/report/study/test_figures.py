"""Figures and tables of audits that are out of the ordinary, without the page around them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fedstill.audit import judge
from fedstill.audit.evidence import RoundFacts, Score
from fedstill.audit.verdicts import Audit
from fedstill.report.figure import curve
from fedstill.report.static import draw
from fedstill.report.study.audit_tables import seeds_table
from fedstill.report.study.bars import leaderboard
from fedstill.report.study.course import convergence, epochs
from fedstill.report.study.scatters import against_teacher
from fedstill.report.study.view import View


def test_a_single_round_is_seen(small: Audit) -> None:
    """A line through one point is nothing: it takes a marker, and few points get one each."""
    facts = RoundFacts(1, 0.6, True, 0.4, 0.0)
    teachers = tuple(replace(one, rounds=(facts,)) for one in small.evidence.teachers)
    students = tuple(replace(one, curve=(0.7,)) for one in small.evidence.students)
    view = View(judge(replace(small.evidence, teachers=teachers, students=students)))
    drawn = [trace for figure in (*convergence(view), *epochs(view)) for trace in figure.data]
    assert len(drawn) > 4
    assert {trace["mode"] for trace in drawn} == {"lines+markers"}
    for figure in (*convergence(view), *epochs(view)):
        (axes,) = draw(figure).axes
        assert any(line.get_marker() == "o" for line in axes.lines)
    long = curve(0, [(float(x), 0.5) for x in range(200)])
    assert long["mode"] == "lines"


def test_a_line_for_labels_alone_only_where_all_students_share_it(small: Audit) -> None:
    """Students with a labels-only student of their own each: two levels are no level, but a table has both."""
    shared = replace(small.evidence, alone={"7": Score(0.9)})
    assert View(judge(shared)).alone == 0.9
    own = {"vanilla": Score(0.9), "sp": Score(0.6)}
    agreed = tuple(replace(one, alone=Score(0.9)) for one in small.evidence.students)
    assert View(judge(replace(small.evidence, students=agreed))).alone == 0.9
    different = tuple(replace(one, alone=own[one.objective]) for one in small.evidence.students)
    view = View(judge(replace(small.evidence, students=different)))
    assert view.alone is None
    (scatter,) = against_teacher(view)
    assert len(scatter.layout["shapes"]) == 1
    assert "labels-only line" not in scatter.caption
    rows = [[cell.text for cell in row] for row in seeds_table(view, Path("page.html")).cells]
    assert [row[:4] for row in rows if "labels only" in row] == [
        ["(none)", "vanilla", "labels only", "90.00\u00a0%"],
        ["(none)", "sp", "labels only", "60.00\u00a0%"],
    ]


def test_counts_and_verbs_agree(small: Audit) -> None:
    one = tuple(
        student for student in small.evidence.students if (student.teacher, student.objective) != ("good", "sp")
    )
    audit = judge(replace(small.evidence, students=one))
    masked = [pair for pair in audit.pairs if pair.word == "masked"]
    (board,) = leaderboard(View(audit))
    told = {0: "", 1: "1 of these 3 is masked: its place", 2: "2 of these 3 are masked: their place"}[len(masked)]
    assert told in board.caption
    (single,) = leaderboard(View(replace(audit, pairs=tuple(masked[:1]))))
    assert "It is masked: its place" in single.caption
    assert "Leaderboard of one pair" in single.sentence


def test_figures_of_runs_below_the_page_lead_to_their_folders(small: Audit, tmp_path: Path) -> None:
    inside, outside = tmp_path / "pages" / "a run", tmp_path / "elsewhere"
    for folder in (inside, outside):
        folder.mkdir(parents=True)
    places = {"good": inside, "bad": outside}
    teachers = tuple(
        replace(one, score=None if one.score is None else replace(one.score, run=places.get(one.name)))
        for one in small.evidence.teachers
    )
    view = View(judge(replace(small.evidence, teachers=teachers)))
    links = {cell.link for row in seeds_table(view, tmp_path / "pages" / "page.html").cells for cell in row}
    assert links == {"", "a%20run/"}
    (inside / "report.html").touch()
    links = {cell.link for row in seeds_table(view, tmp_path / "pages" / "page.html").cells for cell in row}
    assert "a%20run/report.html" in links
    inside.joinpath("report.html").unlink()
    inside.rmdir()
    assert {cell.link for row in seeds_table(view, tmp_path / "pages" / "page.html").cells for cell in row} == {""}
