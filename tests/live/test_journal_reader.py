"""Journals that grow, shrink, are replaced, damaged or huge."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fedstill.live import journal_reader
from fedstill.live.journal_reader import JOURNAL, JournalReader

from .conftest import line


def test_only_whole_new_lines_are_read(tmp_path: Path) -> None:
    reader, path = JournalReader(tmp_path), tmp_path / JOURNAL
    assert not reader.look()
    path.write_text(line(1, 0.4) + "\n" + line(2, 0.6)[:20])
    assert reader.look()
    assert (reader.course.round, reader.course.best, reader.course.damaged) == (1, 0.4, 0)
    assert not reader.look()
    path.write_text(line(1, 0.4) + "\n" + line(2, 0.6) + "\n")
    assert reader.look()
    assert (reader.course.round, reader.course.lines, reader.course.best_round) == (2, 2, 2)
    assert reader.course.curve() == [[1, 0.4], [2, 0.6]]


def test_a_journal_that_is_cut_replaced_or_deleted_is_read_again(tmp_path: Path) -> None:
    reader, path = JournalReader(tmp_path), tmp_path / JOURNAL
    path.write_text("".join(line(round, 0.1 * round) + "\n" for round in (1, 2, 3)))
    reader.look()
    path.write_text(line(1, 0.1) + "\n")
    reader.look()
    assert reader.course.curve() == [[1, 0.1]]
    other = tmp_path / "other"
    other.write_text("".join(line(round, 0.9) + "\n" for round in (1, 2)))
    os.replace(other, path)
    reader.look()
    assert reader.course.curve() == [[1, 0.9], [2, 0.9]]
    path.unlink()
    reader.look()
    assert (reader.course.round, reader.course.curve()) == (0, [])


def test_what_is_no_round_is_counted_and_the_rest_read(tmp_path: Path) -> None:
    hostile = [b"\xff\xfe", b"[1]", b'{"round": "x"}', b'{"round": -3}', b"[" * 5000, b"null", b"0" * 5000]
    odd = b'{"round": 2, "evaluation": [3], "failures": {"a": 1}, "loss": 7, "bytes": null, "skipped": 3}'
    (tmp_path / JOURNAL).write_bytes(b"\n".join([*hostile, line(1, 0.3).encode(), odd, b'{"asked": 1}', b""]))
    reader = JournalReader(tmp_path)
    reader.look()
    assert (reader.course.round, reader.course.lines, reader.course.damaged) == (2, 2, len(hostile) + 1)
    assert reader.course.curve() == [[1, 0.3]]


def test_rounds_that_are_not_finite_are_gaps_and_those_not_evaluated_are_none(tmp_path: Path) -> None:
    lines = [line(1, 0.3), line(2, None), line(3, float("nan")), line(4, 0.5)]
    (tmp_path / JOURNAL).write_text("\n".join([*lines, ""]).replace('"finite": true', '"finite": false', 2))
    reader = JournalReader(tmp_path)
    reader.look()
    assert reader.course.curve() == [[1, 0.3], [3, None], [4, 0.5]]
    assert reader.course.curve("training loss") == [[1, 1.0], [2, 1.0], [3, 1.0], [4, 1.0]]
    assert reader.course.non_finite == 2


def test_failures_and_skipped_rounds(tmp_path: Path) -> None:
    lost = [{"client": 3, "reason": "failed", "detail": "out of\nmemory"}, 7]
    (tmp_path / JOURNAL).write_text(line(1, None, failures=lost, skipped="too few") + "\n")
    reader = JournalReader(tmp_path)
    reader.look()
    assert (reader.course.failed, reader.course.skipped) == (2, 1)
    assert reader.course.failures[0] == "round 1, client 3: out of memory"
    assert reader.course.failures[-1] == "round 1 was skipped: too few"


def test_long_curves_are_thinned_and_huge_lines_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_reader, "_POINTS", 50)
    monkeypatch.setattr(journal_reader, "MOST", 4096)
    path = tmp_path / JOURNAL
    path.write_text("".join(line(round, round / 1000) + "\n" for round in range(1, 301)) + "x" * 9000 + "\n")
    with open(path, "a") as file:
        file.write(line(301, 0.999) + "\n")
    reader = JournalReader(tmp_path)
    for _ in range(40):
        reader.look()
    assert not reader.behind
    assert (reader.course.round, reader.course.best, reader.course.damaged) == (301, 0.999, 1)
    curve = reader.course.curve()
    assert 20 <= len(curve) <= 50
    assert len(reader.course.curve(most=10)) <= 10
    assert reader.course.curve(most=10)[-1] == curve[-1]


def test_a_pipe_in_the_place_of_a_journal_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / JOURNAL)
    assert not JournalReader(tmp_path).look()
