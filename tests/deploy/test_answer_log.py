"""One answer per question: the same request gets the same bytes, another is refused, and a kill loses nothing."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedstill.core.errors import InputError, RunError
from fedstill.core.message import Message
from fedstill.deploy.answer_log import AnswerLog, OtherRequestError, QuestionPlace, request_digest

RUN = "0123456789abcdef"
TRAIN = QuestionPlace(RUN, 0, "train")
TRAIN_LEFT = (RUN, 0, "train", 0)  # as the log of what left has it
HEADER: dict[str, Any] = {"status": "reply", "work": 2.5, "kept": ""}


def reply(number: float) -> Message:
    return Message({"x": torch.full((3,), number), "steps": torch.tensor(7)})


def test_the_same_request_gets_the_same_bytes_also_after_a_restart(tmp_path: Path) -> None:
    log = AnswerLog(tmp_path / "answers")
    assert log.find(TRAIN, "aa") is None
    log.add(TRAIN, "aa", reply(1), HEADER)
    for one in (log, AnswerLog(tmp_path / "answers")):
        found = one.find(TRAIN, "aa")
        assert found is not None
        assert found[0].encode() == reply(1).encode()
        assert found[1] == HEADER


@pytest.mark.parametrize("place", [TRAIN, replace(TRAIN, exchange="evaluate")])
def test_another_request_for_the_same_place_is_refused(place: QuestionPlace, tmp_path: Path) -> None:
    log = AnswerLog(tmp_path)
    log.add(place, "aa", reply(1), HEADER)
    with pytest.raises(OtherRequestError, match="answered another request for round 1"):
        log.find(place, "bb")
    assert log.find(replace(place, attempt=1), "bb") is None, "a new attempt is another place"
    assert log.find(replace(place, round=1), "bb") is None


def test_the_past_is_closed_and_its_bytes_are_gone(tmp_path: Path) -> None:
    log = AnswerLog(tmp_path)
    for round in range(3):
        log.add(QuestionPlace(RUN, round, "train"), f"q{round}", reply(round), HEADER)
    with pytest.raises(OtherRequestError, match="has answered round 3 of this run, and is asked for round 2 again"):
        log.find(QuestionPlace(RUN, 1, "train"), "q1")
    assert len(list((tmp_path / RUN).iterdir())) == 1
    assert [one.round for one in AnswerLog(tmp_path).runs[RUN]] == [0, 1, 2]
    assert log.find(QuestionPlace("f" * 16, 0, "train"), "q") is None, "another run"


def test_a_log_of_answers_that_lacks_what_left_is_not_used(tmp_path: Path) -> None:
    log = AnswerLog(tmp_path)
    log.add(TRAIN, "aa", reply(1), HEADER)
    log.add(replace(TRAIN, attempt=1), "bb", reply(2), HEADER)
    left = [TRAIN_LEFT, (RUN, 0, "train", 1)]
    AnswerLog(tmp_path).check_holds(Counter(left))
    AnswerLog(tmp_path).check_holds(Counter(left[:1]))  # killed between the answer and the line of the log
    assert (log.unlogged(set(left[:1])), log.unlogged(set(left))) == (1, 0), "the other way round"
    log.reset(RUN)
    AnswerLog(tmp_path).check_holds(Counter(left))
    log.add(TRAIN, "cc", reply(3), HEADER)
    AnswerLog(tmp_path).check_holds(Counter([*left, TRAIN_LEFT]))
    (tmp_path / f"{RUN}.jsonl").unlink()
    with pytest.raises(InputError, match="it was deleted"):
        AnswerLog(tmp_path).check_holds(
            Counter([*left, TRAIN_LEFT])
        )  # what was answered before the reset does not stand for it
    for missing in ((RUN, 1, "train", 0), (RUN, 0, "evaluate", 0), (RUN, 0, "train", 2), ("f" * 16, 0, "train", 0)):
        with pytest.raises(InputError, match="it was deleted, or comes from a backup; restore the latest one"):
            AnswerLog(tmp_path).check_holds(Counter([*left, missing]))


def test_equal_replies_of_two_rounds_share_their_bytes(tmp_path: Path) -> None:
    log = AnswerLog(tmp_path)
    for round in range(2):
        log.add(QuestionPlace(RUN, round, "train"), f"q{round}", reply(5), HEADER)
    assert log.find(QuestionPlace(RUN, 1, "train"), "q1") is not None


def test_a_failure_takes_the_place_and_may_be_tried_again(tmp_path: Path) -> None:
    log = AnswerLog(tmp_path)
    log.add(TRAIN, "aa", None, {"status": "failed"})
    assert log.find(TRAIN, "aa") is None
    with pytest.raises(OtherRequestError):
        log.find(TRAIN, "bb")
    assert (log.used.rounds, log.used.answers) == (0, 1), "that it failed may tell something of the data"
    log.add(TRAIN, "aa", None, {"status": "refused"})
    assert (log.used.rounds, log.used.answers) == (0, 0), "what the policy held back does not"
    log.add(TRAIN, "aa", reply(1), HEADER)
    assert AnswerLog(tmp_path).find(TRAIN, "aa") is not None
    assert (log.used.rounds, log.used.answers) == (1, 1)


def test_a_policy_that_withholds_more_is_not_circumvented_by_asking_again(tmp_path: Path) -> None:
    log = AnswerLog(tmp_path)
    log.add(TRAIN, "aa", reply(1), HEADER, withheld=())
    with pytest.raises(OtherRequestError, match="policy has changed since it answered"):
        log.find(TRAIN, "aa", withheld=("recall",))


def test_budgets_count_over_runs_and_resets(tmp_path: Path) -> None:
    log = AnswerLog(tmp_path)
    for run in (RUN, "f" * 16):
        for exchange in ("train", "evaluate"):
            log.add(QuestionPlace(run, 0, exchange), "q", reply(1), HEADER, noise=0.5 if exchange == "train" else None)
    assert log.used == AnswerLog(tmp_path).used
    assert (log.used.rounds, log.used.answers, log.used.noise) == (2, 4, (0.5, 0.5))
    assert log.reset(RUN) == 2
    assert log.find(TRAIN, "other") is None, "the operator opened the run again"
    log.add(TRAIN, "other", reply(2), HEADER, noise=0.25)
    assert log.reset(RUN) == 1
    again = AnswerLog(tmp_path)
    assert (again.used.rounds, again.used.answers) == (3, 5)
    assert sorted(again.used.noise) == [0.25, 0.5, 0.5]
    with pytest.raises(InputError, match=f"answered nothing in a run {'0' * 16!r}: its runs are {'f' * 16}"):
        log.reset("0" * 16)


def test_a_kill_before_the_commit_leaves_no_answer_and_one_after_it_a_whole_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before every single system call that writes: an answer is there or not, and never half of it."""

    class Killed(BaseException):
        pass

    seen = set()
    for calls in range(12):
        folder, left = tmp_path / str(calls), [calls]

        def count(real: Any, left: list[int] = left) -> Any:
            def call(*arguments: Any, **more: Any) -> Any:
                left[0] -= 1
                if left[0] < 0:
                    raise Killed
                return real(*arguments, **more)

            return call

        with monkeypatch.context() as patch:
            for name in ("replace", "fsync", "mkdir"):
                patch.setattr(os, name, count(getattr(os, name)))
            with contextlib.suppress(Killed):
                AnswerLog(folder).add(TRAIN, "aa", reply(1), HEADER)
        found = AnswerLog(folder).find(TRAIN, "aa")
        seen.add(found is not None)
        assert found is None or found[0].encode() == reply(1).encode()
    assert seen == {True, False}


def test_a_line_that_was_cut_is_removed_and_a_damaged_one_stops_the_site(tmp_path: Path) -> None:
    log = AnswerLog(tmp_path)
    log.add(TRAIN, "aa", reply(1), HEADER)
    path = tmp_path / f"{RUN}.jsonl"
    whole = path.read_bytes()
    cut = whole + b'{"round": 1, "exch'
    path.write_bytes(cut)
    temporary = tmp_path / RUN / ".bytes.1.tmp"
    temporary.touch()
    again = AnswerLog(tmp_path)
    assert again.find(TRAIN, "aa") is not None
    assert path.read_bytes() == cut, "another process may be writing: who only reads changes nothing"
    assert temporary.exists()
    again.add(replace(TRAIN, exchange="evaluate"), "bb", reply(1), HEADER)
    assert path.read_bytes().startswith(whole + b'{"attempt"')
    assert not temporary.exists()
    assert len(AnswerLog(tmp_path).runs[RUN]) == 2
    path.write_bytes(b"[[" + whole)
    with pytest.raises(RunError, match=r"the log of answers .* is damaged"):
        AnswerLog(tmp_path)


def test_a_missing_or_changed_reply_is_not_sent(tmp_path: Path) -> None:
    log = AnswerLog(tmp_path)
    log.add(TRAIN, "aa", reply(1), HEADER)
    (file,) = (tmp_path / RUN).iterdir()
    file.write_bytes(reply(2).encode())
    with pytest.raises(RunError, match="is damaged"):
        log.find(TRAIN, "aa")
    file.unlink()
    with pytest.raises(RunError, match="is missing"):
        log.find(TRAIN, "aa")


def test_the_digest_of_a_request_covers_tensors_and_place_but_nothing_else() -> None:
    header = {"run": RUN, "exchange": "train", "round": 0, "client": 1, "since": -1, "kept": -1, "state": ""}
    first = request_digest(reply(1), header)
    assert first == request_digest(reply(1), {**header, "attempt": 0, "other": "words"})
    changes = [
        {"round": 1},
        {"exchange": "x"},
        {"client": 2},
        {"since": 0},
        {"kept": 0},
        {"state": "a"},
        {"attempt": 1},
    ]
    others = [request_digest(reply(1), {**header, **change}) for change in changes]
    assert len({first, request_digest(reply(1.0000001), header), *others}) == len(changes) + 2
