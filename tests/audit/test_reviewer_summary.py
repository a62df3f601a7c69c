"""One page of Markdown for a reviewer."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedstill.audit import judge
from fedstill.audit.reviewer_summary import checked_summary, reviewer_summary, write_summary
from fedstill.core.errors import InputError

from .grids import evidence

TEACHERS = {"a": [80, 81, 82], "b|c": [25, 25, 25]}
LABELLED = {("a", "o"): [82, 83, 84], ("b|c", "o"): [82, 83, 83]}
FREE = {("a", "o"): [80, 81, 82], ("b|c", "o"): [25, 26, 24]}


def test_the_page_holds_sentence_findings_figures_and_command(tmp_path: Path) -> None:
    found = judge(evidence(TEACHERS, LABELLED, FREE, weights={"o": 0.5}))
    write_summary(found, tmp_path / "review.md", "fedstill audit x.csv")
    page = (tmp_path / "review.md").read_text(encoding="utf-8")
    assert page == reviewer_summary(found, "fedstill audit x.csv")
    assert page.startswith("# Audit of made up\n\nLabels hide the teacher")
    assert "| serious | `masked` |" in page
    assert "| b/c | o | 82.7 | 25.0 | +57.7 [" in page  # a bar would end a cell
    assert "2,000 test samples" in page
    assert "Made with `fedstill audit x.csv`." in page
    assert found.to_markdown() == reviewer_summary(found)


def test_a_large_audit_stays_one_page() -> None:
    teachers = {f"t{number}": [60 + number, 61 + number, 62 + number] for number in range(20)}
    students = {(name, "o"): values for name, values in teachers.items()}
    page = judge(evidence(teachers, students, weights={"o": 0.5})).to_markdown()
    assert len(page.splitlines()) < 60
    assert "8 most conspicuous of 20 pairs" in page
    assert "The best and the worst 4 of 20." in page


def test_methods_without_students() -> None:
    page = judge(evidence(TEACHERS)).to_markdown()
    assert "## Methods (chance level 25.0 %)" in page
    assert "## Students" not in page


def test_a_page_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "page.pdf", tmp_path, tmp_path / "nowhere" / "page.md"):
        with pytest.raises(InputError, match="--summary"):
            checked_summary(path)
