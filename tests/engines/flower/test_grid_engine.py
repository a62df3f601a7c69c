"""Questions to sites, and what a server does where another question took the place."""

from __future__ import annotations

from typing import Any

import pytest
from flwr.supercore.task_identity import TaskIdentity

from fedstill.core.message import Message
from fedstill.core.protocols import Failure, Profile, Reply, RoundContext
from fedstill.core.streams import Streams
from fedstill.engines.flower.encoding import unpacked, unsalted
from fedstill.engines.flower.grid_engine import ATTEMPTS, Flower

from .test_correspondence import NODE, Lines

TAKEN: dict[str, Any] = {"status": "refused", "detail": "another request", "taken": 1}
REPLY: dict[str, Any] = {"status": "reply", "work": 1.0, "kept": ""}


class _Train:
    name = "train"


def asked(*script: Any) -> tuple[list[Reply | Failure], list[Any], list[str]]:
    """What comes of one question, the attempts that were sent, and what was reported."""
    lines, notes = Lines(*script), list[str]()
    engine = Flower(lines, {0: NODE}, "0" * 16, report=notes.append)
    context = RoundContext(2, 3, 1, "train", Streams(1).at("round", 2, "train"))
    exchange: Any = _Train()
    found = list(engine.dispatch(exchange, [(Profile(0, 10, "mlp"), Message({}), {})], context))
    return found, [unpacked(unsalted(one.content))[1].get("attempt") for one in lines.sent], notes


@pytest.fixture(autouse=True)
def sender(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("run_id", "node_id", "task_id"):
        monkeypatch.setattr(TaskIdentity, f"_{name}", 1)


def test_a_question_whose_place_is_taken_is_asked_under_a_further_attempt() -> None:
    (reply,), attempts, notes = asked(TAKEN, TAKEN, REPLY)
    assert isinstance(reply, Reply)
    assert attempts == [None, 1, 2]
    told = "round 3, train, client 0: its site has answered another request: it is asked as attempt"
    assert notes == [f"{told} 2", f"{told} 3"]


def test_attempts_are_bounded() -> None:
    (failure,), attempts, _ = asked(*[TAKEN] * 9)
    assert isinstance(failure, Failure)
    assert failure.reason == "refused"
    assert attempts == [None, *range(1, ATTEMPTS)]


def test_other_refusals_are_final() -> None:
    (failure,), attempts, _ = asked({"status": "refused", "detail": "its policy accepts 1 further attempts"})
    assert isinstance(failure, Failure)
    assert attempts == [None]
