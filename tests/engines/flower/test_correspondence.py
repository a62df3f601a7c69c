"""Letters to sites whose connections break, over lines that only a test has."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from flwr.app import Error, Message, RecordDict
from flwr.app.message.message import make_message
from flwr.supercore.task_identity import TaskIdentity

from fedstill.engines.flower import correspondence
from fedstill.engines.flower.correspondence import UNREADABLE, Correspondence, Letter, Outages, corresponded
from fedstill.engines.flower.encoding import packed, salted, unpacked, unsalted

NODE = 7


class Lines:
    """A grid with one node; what it does with each message is a script: a reply, an error's number, or nothing."""

    def __init__(self, *script: Any) -> None:
        self.script = list(script)
        self.online, self.connected = True, 0
        self.sent: list[Message] = []
        self.replies: dict[str, Message] = {}
        self.dropped: list[str] = []

    def get_node_ids(self) -> list[int]:
        return [NODE] if self.online else []

    def since(self, node: int) -> str:
        return str(self.connected)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        (message,) = messages
        name = str(len(self.sent))
        message.metadata.__dict__["_message_id"] = name
        self.sent.append(message)
        match self.script.pop(0) if self.script else "reply":
            case "reply":
                self.replies[name] = Message(salted(packed({}, {"status": "here"})), reply_to=message)
            case dict(header):
                self.replies[name] = Message(salted(packed({}, header)), reply_to=message)
            case int(code):
                self.replies[name] = self._error(message, code)
            case "restart":
                self.connected += 1
            case "leave":
                self.online = False
                self.replies[name] = self._error(message, 5)
        return [name]

    def _error(self, message: Message, code: int) -> Message:
        made = Message(RecordDict(), reply_to=message)
        return make_message(metadata=made.metadata, error=Error(code, "why"))

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [self.replies.pop(name) for name in list(message_ids) if name in self.replies]

    def drop_messages(self, message_ids: Iterable[str]) -> None:
        self.dropped += message_ids


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Time passes only in `sleep`, and Flower's messages have a sender."""
    now = [0.0]
    monkeypatch.setattr(correspondence, "monotonic", lambda: now[0])
    monkeypatch.setattr(correspondence, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    for name in ("run_id", "node_id", "task_id"):
        monkeypatch.setattr(TaskIdentity, f"_{name}", 1)
    return now


LETTER = Letter(0, NODE, "train.exchange", {}, {"round": 1, "exchange": "train", "client": 4})


def asked(lines: Lines, wait: float, patience: float = 100.0) -> tuple[Any, list[str]]:
    notes: list[str] = []
    (answer,) = corresponded(lines, [LETTER], patience, 2**20, Outages(wait), notes.append)
    return answer, notes


@pytest.mark.parametrize("fault", [3, 4, 5, "restart"])
def test_a_message_whose_connection_breaks_is_sent_again(fault: Any) -> None:
    lines = Lines(fault, fault, "reply")
    answer, notes = asked(lines, wait=60)
    assert answer.header == {"status": "here"}
    assert len(lines.sent) == 3
    headers = [unpacked(unsalted(one.content))[1] for one in lines.sent]
    assert headers == [LETTER.header] * 3, "the same message"
    assert len(notes) == 2
    assert notes[0].startswith("round 2, train, client 4: its ")
    assert notes[0].endswith(": the same message is sent again")
    assert lines.dropped == (["0", "1"] if fault == "restart" else []), "nothing is left of what was given up"


def test_without_a_wait_a_broken_connection_is_final() -> None:
    lines = Lines("restart")
    answer, notes = asked(lines, wait=0)
    assert answer.trouble == "its site was restarted, or lost its connection"
    assert not answer.unreadable
    assert (len(lines.sent), notes) == (1, [])


def test_what_a_site_sent_itself_is_final() -> None:
    lines = Lines(UNREADABLE)
    answer, _ = asked(lines, wait=60)
    assert answer.unreadable
    assert answer.trouble == "its reply could not be read: why"
    assert len(lines.sent) == 1


def test_a_connection_that_breaks_again_and_again_is_given_up_in_time(clock: list[float]) -> None:
    lines = Lines(*["restart"] * 1000)
    answer, notes = asked(lines, wait=20)
    assert answer.trouble == "its site was restarted, or lost its connection"
    assert 20 <= clock[0] < 30
    assert 5 < len(notes) < 20, "each attempt comes later than the one before"


def test_a_connection_that_held_for_long_may_break_again(clock: list[float]) -> None:
    lines = Lines("restart", "nothing", "reply")
    letters = Correspondence(lines, 1000, 2**20, Outages(20))
    letters.send(LETTER)
    answers, broken = list[Any](), False
    while not answers and clock[0] < 200:
        answers = letters.poll()
        correspondence.sleep(1)
        if clock[0] > 100 and not broken:
            lines.connected, broken = lines.connected + 1, True
    assert [answer.header for answer in answers] == [{"status": "here"}]
    assert len(lines.sent) == 3


def test_a_site_that_leaves_is_waited_for_and_the_next_letter_does_not_wait_again(clock: list[float]) -> None:
    lines, outages = Lines("leave"), Outages(10)
    for spent in (10, 0, 0):
        began = clock[0]
        (answer,) = corresponded(lines, [LETTER], 100, 2**20, outages)
        assert answer.trouble
        assert spent <= clock[0] - began < spent + 1
    lines.online, lines.connected = True, 1
    (answer,) = corresponded(lines, [LETTER], 100, 2**20, outages)
    assert answer.header == {"status": "here"}
    lines.online = False
    began = clock[0]
    list(corresponded(lines, [LETTER], 100, 2**20, outages))
    assert clock[0] - began >= 10, "a new outage"


def test_a_site_that_was_given_up_is_not_waited_for(clock: list[float]) -> None:
    lines, outages = Lines(), Outages(10)
    lines.online = False
    outages.give_up(NODE)
    (answer,) = corresponded(lines, [LETTER], 100, 2**20, outages)
    assert answer.trouble == "its site is not connected"
    assert clock[0] < 1


def test_a_connected_site_that_does_not_answer_has_failed_after_patience(clock: list[float]) -> None:
    answer, _ = asked(lines := Lines("nothing"), wait=60, patience=5)
    assert answer.trouble == "no reply within 5 seconds"
    assert 5 <= clock[0] < 6
    assert lines.dropped == ["0"]


def test_letters_can_be_added_while_others_are_under_way() -> None:
    lines = Lines("nothing", "reply")
    letters = Correspondence(lines, 100, 2**20)
    letters.send(LETTER)
    assert letters.poll() == []
    letters.send(Letter(1, NODE, "query.enrol", {}, {}))
    (answer,) = letters.poll()
    assert answer.letter.to == 1
    assert letters.receivers == [0]
    letters.close()
    assert (letters.receivers, lines.dropped) == ([], ["0"])
