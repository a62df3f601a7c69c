from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from fedstill.core.errors import InputError
from fedstill.core.protocols import DropoutEvent, RoundContext
from fedstill.core.streams import Streams
from fedstill.participation.trace import Trace


def context(round: int) -> RoundContext:
    return RoundContext(round, 10, 10, "select", Streams(0).at("round", round, "select"))


def trace(folder: Path, text: str, **settings: object) -> Trace:
    path = folder / "lost.csv"
    path.write_text(text, encoding="utf-8")
    return Trace(file=str(path), **settings)


FULL = "round,client,when,fraction\n0,3,before,\n0,1,during,0.25\n2,1,,\n\n2,4,during,\n2,0,after,0.5\n"


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
    dropout = trace(tmp_path, "\ufeffclient, round\r\n7,1\r\n", when="before")
    assert dropout.dropout_events({}, range(10), context(1)) == {7: DropoutEvent("before")}
    assert dropout.dropout_events({}, range(10), context(0)) == {}


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
    (tmp_path / "lost.csv").write_text("round,client\n0,0\n")
    assert dropout.digest == sha256(FULL.encode()).hexdigest()
    assert list(dropout.dropout_events({}, range(5), context(0))) == [1, 3]
    assert dropout == Trace(file=dropout.file)
    assert dropout.model_dump() == Trace(file=dropout.file).model_dump()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"must begin with the names of its columns, round,client or .* not ''"),
        ("0,3\n1,4\n", r"must begin with the names of its columns"),
        ("round,when\n0,after\n", r"must begin with the names of its columns"),
        ("round,client,client\n0,1,1\n", r"must begin with the names of its columns"),
        ("round,client,reason\n0,1,x\n", r"must begin with the names of its columns"),
        ("round,client\n0,1\nx,2\n", r"line 3: round must be a number from 0, not 'x'"),
        ("round,client\n0,-1\n", r"line 2: client must be a number from 0, not '-1'"),
        ("round,client\n0,²\n", r"line 2: client must be a number from 0, not '²'"),
        ("round,client\n0,1.0\n", r"line 2: client must be a number from 0, not '1.0'"),
        ("round,client\n0\n", r"line 2: 1 cells under 2 columns"),
        ("round,client,when\n0,1,later\n", r"line 2: when is before, during or after, not 'later'"),
        ("round,client,when,fraction\n0,1,during,1.5\n", r"line 2: fraction is a number from 0 to 1, not '1.5'"),
        ("round,client,when,fraction\n0,1,during,nan\n", r"line 2: fraction is a number from 0 to 1, not 'nan'"),
        ("round,client,when,fraction\n0,1,during,half\n", r"line 2: fraction is a number from 0 to 1, not 'half'"),
        ("round,client\n0,1\n\n0,1\n", r"line 4: line 2 already has client 1 dropping out of round 0"),
        ("round,client\n0,1\n0,7\n", r"line 3: there is no client 7, only 0 to 4"),
    ],
    ids=range(16),
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
        trace(tmp_path, f"round,client\n0,{'9' * 5000}\n").check(5)
