from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedstill.core.errors import InputError
from fedstill.core.participation_protocols import DropoutEvent
from fedstill.core.protocols import RoundContext
from fedstill.core.streams import Streams
from fedstill.engines import InProcess
from fedstill.participation.trace import Trace
from fedstill.runtime.run import execute


def context(round: int) -> RoundContext:
    return RoundContext(round, 10, 10, "select", Streams(0).at("round", round, "select"))


def trace(folder: Path, text: str, **settings: object) -> Trace:
    path = folder / "lost.csv"
    path.write_text(text, encoding="utf-8")
    return Trace(file=str(path), **settings)


FULL = "round,client,when,fraction\n1,3,before,\n1,1,during,0.25\n3,1,,\n\n3,4,during,\n3,0,after,0.5\n"


def test_a_file_is_replayed(tmp_path: Path) -> None:
    dropout = trace(tmp_path, FULL, when="after")
    dropout.check(5)
    assert dropout.dropout_events({}, range(5), context(0)) == {
        1: DropoutEvent("during", 0.25),
        3: DropoutEvent("before"),
    }
    assert dropout.dropout_events({}, range(5), context(1)) == {}
    drawn = context(2).streams.draw("fraction", 4).random()
    assert dropout.dropout_events({}, range(5), context(2)) == {
        0: DropoutEvent("after"),
        1: DropoutEvent("after"),
        4: DropoutEvent("during", drawn),
    }
    assert dropout.dropout_events({}, [2, 3], context(2)) == {}


def test_two_columns_do(tmp_path: Path) -> None:
    dropout = trace(tmp_path, "\ufeffclient, round\r\n7,2\r\n", when="before")
    assert dropout.dropout_events({}, range(10), context(1)) == {7: DropoutEvent("before")}
    assert dropout.dropout_events({}, range(10), context(0)) == {}


def test_the_failures_of_a_journal_are_repeated(tiny_plan: Any, tmp_path: Path) -> None:
    settings = {"method": "scaffold", "rounds": 3}
    table = trace(tmp_path, "round,client\n2,1\n2,0\n3,2\n").file
    with InProcess() as engine:
        first = execute(tiny_plan(**settings, dropout={"name": "trace", "file": table}), engine, tmp_path / "first")
        journal = str(first.path / "journal.jsonl")
        again = execute(tiny_plan(**settings, dropout={"name": "trace", "file": journal}), engine, tmp_path / "again")
        whole = execute(tiny_plan(**settings), engine, tmp_path / "whole")
    assert {round: set(rows) for round, rows in Trace(file=journal).recorded.rounds.items()} == {1: {0, 1}, 2: {2}}
    assert [record.failures for record in again.journal()] == [record.failures for record in first.journal()]
    shas = [run.result().sha256 for run in (first, again, whole)]  # type: ignore[union-attr]
    assert shas[0] == shas[1] != shas[2]


@pytest.mark.parametrize("line", ["{}", "[1", "[" * 100_000, '{"round": 0, "sampled": []}', "round,client"])
def test_what_is_no_journal_is_refused(line: str, tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").write_text(line + "\n")
    with pytest.raises(InputError, match="line 1, is no line of a journal"):
        _ = Trace(file=str(tmp_path / "journal.jsonl")).recorded


def test_those_who_are_lost_cannot_stand_in(tmp_path: Path) -> None:
    ids = np.arange(5)
    assert trace(tmp_path, FULL).can_replace({}, ids, context(0)).tolist() == [0, 2, 4]
    assert trace(tmp_path, FULL).can_replace({}, ids, context(1)).tolist() == [0, 1, 2, 3, 4]
    assert trace(tmp_path, FULL, replacements_can_drop=True).can_replace({}, ids, context(0)).tolist() == [
        0,
        1,
        2,
        3,
        4,
    ]


def test_its_digest_is_that_of_the_file_and_it_is_read_once(tmp_path: Path) -> None:
    dropout = trace(tmp_path, FULL)
    assert dropout.digest == sha256(FULL.encode()).hexdigest()
    (tmp_path / "lost.csv").write_text("round,client\n1,0\n")
    assert dropout.digest == sha256(FULL.encode()).hexdigest()
    assert list(dropout.dropout_events({}, range(5), context(0))) == [1, 3]
    assert dropout == Trace(file=dropout.file)
    assert dropout.model_dump() == Trace(file=dropout.file).model_dump()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"must begin with the names of its columns, round,client or .* not ''"),
        ("1,3\n2,4\n", r"must begin with the names of its columns"),
        ("round,when\n1,after\n", r"must begin with the names of its columns"),
        ("round,client,client\n1,1,1\n", r"must begin with the names of its columns"),
        ("round,client,reason\n1,1,x\n", r"must begin with the names of its columns"),
        ("round,client\n1,1\nx,2\n", r"line 3: round must be a number from 1, not 'x'"),
        ("round,client\n1,-1\n", r"line 2: client must be a number from 0, not '-1'"),
        ("round,client\n1,²\n", r"line 2: client must be a number from 0, not '²'"),
        ("round,client\n1,1.0\n", r"line 2: client must be a number from 0, not '1.0'"),
        ("round,client\n1\n", r"line 2: 1 cells under 2 columns"),
        ("round,client,when\n1,1,later\n", r"line 2: when is before, during or after, not 'later'"),
        ("round,client,when,fraction\n1,1,during,1.5\n", r"line 2: fraction is a number from 0 to 1, not '1.5'"),
        ("round,client,when,fraction\n1,1,during,nan\n", r"line 2: fraction is a number from 0 to 1, not 'nan'"),
        ("round,client,when,fraction\n1,1,during,half\n", r"line 2: fraction is a number from 0 to 1, not 'half'"),
        ("round,client\n1,1\n\n1,1\n", r"line 4: line 2 already has client 1 dropping out of round 1"),
        ("round,client\n1,1\n1,7\n", r"line 3: there is no client 7, only 0 to 4"),
        ("round,client\n1,1\n0,2\n", r"line 3: rounds are counted from 1, .* this is round 0: add 1 to each of them"),
        ("round,client\n0,1\n1,1\n", r"line 2: rounds are counted from 1"),
    ],
    ids=range(18),
)
def test_a_bad_file_is_one_sentence(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        trace(tmp_path, text).check(5)
    assert "\n" not in str(caught.value)
    assert "lost.csv" in str(caught.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere\.csv cannot be read: No such file"):
        Trace(file=str(tmp_path / "nowhere.csv")).check(5)
    with pytest.raises(InputError, match=r"cannot be read: Is a directory"):
        Trace(file=str(tmp_path)).check(5)
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe\x00round")
    with pytest.raises(InputError, match=r"bytes\.csv cannot be read: it is not text"):
        Trace(file=str(tmp_path / "bytes.csv")).check(5)


def test_a_huge_number_is_refused_like_any_other(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"line 2: "):
        trace(tmp_path, f"round,client\n1,{'9' * 5000}\n").check(5)


def test_rows_beyond_the_run_are_one_sentence(tmp_path: Path) -> None:
    """Rounds 1 to 3 are a run of three; the first row beyond it is named, and how many rounds the file is for."""
    dropout = trace(tmp_path, FULL)
    dropout.check_rounds(3)
    longer = trace(tmp_path, "round,client\n7,0\n1,0\n5,1\n5,0\n")
    with pytest.raises(InputError, match=r"lost\.csv, line 4: there is no round 5, only 1 to 4: .* set rounds to 7"):
        longer.check_rounds(4)


def test_a_run_and_its_trace_count_rounds_alike(tiny_plan: Any, tmp_path: Path) -> None:
    """Who drops out of round 2 in the file is missing from line 2 of the journal."""
    (tmp_path / "lost.csv").write_text("round,client\n2,1\n")
    plan = tiny_plan(dropout={"name": "trace", "file": str(tmp_path / "lost.csv")}, rounds=2, clients=3)
    journal = execute(plan, InProcess(), tmp_path / "run").journal()
    assert [(record.round, [one.client for one in record.failures]) for record in journal] == [(1, []), (2, [1])]
    with pytest.raises(InputError, match=r"line 2: there is no round 2, only 1 to 1"):
        tiny_plan(dropout={"name": "trace", "file": str(tmp_path / "lost.csv")}, rounds=1, clients=3)
