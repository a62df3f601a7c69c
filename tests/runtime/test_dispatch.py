"""Requests out, replies validated: what rounds, surveys and evaluation share, and in what they differ."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from fedstill.core.message import Message
from fedstill.core.participation_protocols import DropoutEvent
from fedstill.core.protocols import Exchange, Failure, Profile, Reply, RoundContext
from fedstill.core.streams import Streams
from fedstill.core.task import Tensors
from fedstill.engines import InProcess
from fedstill.runtime.client_store import ClientStore
from fedstill.runtime.dispatch import AlwaysAvailable, Availability, dispatch
from fedstill.runtime.round_outcome import RoundOutcome

CLIENTS = [Profile(client, 10, "cnn") for client in range(5)]
CONTEXT = RoundContext.of(Streams(0), 0, 1, 5, "echo")


class Echo(Exchange):
    """Client 1 is sent nothing."""

    name = "echo"

    def request(self, state: Tensors, who: Profile, context: RoundContext) -> Message | None:
        return None if who.id == 1 else Message({"x": torch.full((2,), float(who.id))})

    def reply(self, client: Any, request: Message, context: RoundContext) -> Message:
        return request

    def expect(self, state: Tensors, who: Profile, request: Message) -> Mapping[str, Any]:
        return {"x": ((2,), torch.float32)}

    def aggregate(self, state: Tensors, replies: Sequence[Reply], context: RoundContext) -> Tensors:
        return state


class Misbehaving(InProcess):
    """Client 2 replies with another type, client 3 fails; all others echo, the last first, and have a new state."""

    def dispatch(self, exchange: Exchange, jobs: Iterable[Any], context: RoundContext) -> Generator[Reply | Failure]:
        for who, request, _ in reversed(list(jobs)):
            if who.id == 3:
                yield Failure(who, "failed", "MemoryError", 1.0)
            else:
                message = Message({"x": request["x"].double()}) if who.id == 2 else request
                yield Reply(who, message, {"w": torch.ones(1)}, 7.0)


class Book:
    """The battery of client 0 is empty; what is charged is remembered."""

    def __init__(self) -> None:
        self.charged: list[tuple[int, float]] = []

    def battery_empty(self, client: int) -> bool:
        return client == 0

    def expected_work(self, who: Profile) -> float:
        return 30.0

    def charge(self, who: Profile, down: int, work: float, up: int) -> str | None:
        self.charged.append((who.id, work))
        return None


def sent(tmp_path: Path, **how: Any) -> tuple[list[Reply], RoundOutcome, ClientStore]:
    outcome, store = RoundOutcome(), ClientStore(tmp_path, len(CLIENTS))
    return dispatch(Misbehaving(), Echo(), {}, CLIENTS, CONTEXT, store, outcome, **how), outcome, store


def test_every_client_is_asked_and_bad_replies_are_refused(tmp_path: Path) -> None:
    """As in evaluation: no battery counts, and no client's state changes."""
    accepted, outcome, store = sent(tmp_path)
    assert [reply.profile.id for reply in accepted] == [0, 4]
    assert outcome.sampled == {0, 2, 3, 4}
    assert {(one.profile.id, one.reason) for one in outcome.failures} == {(2, "refused"), (3, "failed")}
    assert outcome.traffic.down == 4 * accepted[0].message.nbytes
    assert outcome.traffic.up > 2 * accepted[0].message.nbytes, "a refused reply has arrived all the same"
    assert sorted(outcome.work) == [1.0, 7.0, 7.0, 7.0]
    assert store.holders() == []


def test_states_change_only_where_that_is_wanted_and_the_reply_was_accepted(tmp_path: Path) -> None:
    assert sent(tmp_path, keep_state=True)[2].holders() == [0, 4]


@pytest.mark.parametrize("when", ["before", "during", "after"])
def test_a_client_that_drops_out_is_charged_for_what_it_did(when: Any, tmp_path: Path) -> None:
    book = Book()
    event = {4: DropoutEvent(when, 0.5 if when == "during" else 1.0)}
    accepted, outcome, _ = sent(tmp_path, availability=Availability(book, event))  # type: ignore[arg-type]
    assert accepted == []
    lost = {one.profile.id: (one.reason, one.detail) for one in outcome.failures}
    assert lost[0] == ("battery", "its battery is empty")
    details = {
        "before": "before it was sent a request",
        "during": "after 50% of its work",
        "after": "its reply did not arrive",
    }
    assert lost[4] == ("dropped", details[when])
    assert dict(book.charged).get(4) == {"before": None, "during": 15.0, "after": 7.0}[when]
    assert (4 in outcome.sampled) == (when != "before")


@pytest.mark.parametrize("alike", [True, False])
def test_what_all_clients_are_sent_alike_is_one_message(alike: bool, tmp_path: Path) -> None:
    """An engine then encodes it once; messages that are merely equal remain several."""
    memory, seen = torch.zeros(2), []

    class Same(Echo):
        def request(self, state: Tensors, who: Profile, context: RoundContext) -> Message | None:
            return Message({"x": memory if alike else memory.clone()})

    class Remembers(InProcess):
        def dispatch(self, exchange: Exchange, jobs: Any, context: RoundContext) -> Generator[Reply | Failure]:
            for who, request, _ in jobs:
                seen.append(request)
                yield Reply(who, request, None)

    outcome = RoundOutcome()
    dispatch(Remembers(), Same(), {}, CLIENTS, CONTEXT, ClientStore(tmp_path, len(CLIENTS)), outcome)
    assert len({id(request) for request in seen}) == (1 if alike else len(CLIENTS))
    assert outcome.traffic.down == len(CLIENTS) * seen[0].nbytes


def test_nothing_happens_to_clients_that_are_always_available() -> None:
    always, request = AlwaysAvailable(), Message({})
    assert always.before(CLIENTS[0]) is None
    assert always.during(CLIENTS[0], request) is None
    assert always.after(request, Failure(CLIENTS[0], "failed", "")) is None
