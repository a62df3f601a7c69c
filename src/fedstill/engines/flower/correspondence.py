"""Messages to sites and their answers, over connections that break.

A site that loses its connection comes back by itself, and is then sent the same message again: it has kept what it
answered, so that a fault of the network costs nothing but time. Only a site that stays away for too long has failed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from time import monotonic, sleep
from typing import Any, Protocol

from flwr.app import Message as Envelope

from fedstill.core.message import Message, MessageError
from fedstill.engines.flower.encoding import Header, new_salt, packed, salted, unpacked, unsalted

POLL = 0.05  # seconds between looks at what has come
UNREADABLE = 2  # Flower's number for an error that is the site's; with any other, the connection is to blame
_FIRST, _LONGEST = 0.1, 5.0  # seconds before something is tried again
_SILENT = 5  # Flower's number for a node that is not there any more
_NOT_CONNECTED = "its site is not connected"


class Backoff:
    """Growing delays between attempts, with jitter, so that sites that were cut off together do not return together.

    The jitter comes from the system: nothing that a run computes depends on it.
    """

    def __init__(self, first: float = _FIRST, longest: float = _LONGEST) -> None:
        self.first, self.longest = first, longest
        self.reset()

    def reset(self) -> None:
        self._next = self.first

    def next(self) -> float:
        """Seconds until the next attempt.

        >>> backoff = Backoff(1.0, 3.0)
        >>> [round(backoff.next() / expected) for expected in (1, 2, 3, 3)]
        [1, 1, 1, 1]
        """
        delay, self._next = self._next, min(2 * self._next, self.longest)
        return delay * (0.8 + 0.4 * new_salt()[0] / 255)


class Lines(Protocol):
    """The part of Flower's grid that is needed, and when each site connected."""

    def push_messages(self, messages: Iterable[Envelope]) -> Iterable[str]: ...

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Envelope]: ...

    def drop_messages(self, message_ids: Iterable[str]) -> None: ...

    def get_node_ids(self) -> Iterable[int]: ...

    def since(self, node: int) -> str: ...


@dataclass
class Outages:
    """How long sites have been away; each is waited for once in an outage, not in every exchange of every round."""

    wait: float = 0.0  # seconds
    _began: dict[int, float] = field(default_factory=dict)  # by node

    def look(self, nodes: Iterable[int], online: set[int]) -> None:
        """Note who is away, and since when."""
        for node in nodes:
            if node in online:
                self._began.pop(node, None)
            else:
                self._began.setdefault(node, monotonic())

    def over(self, node: int) -> bool:
        """Whether a site that is away has been waited for long enough."""
        return node in self._began and monotonic() - self._began[node] >= self.wait

    def give_up(self, node: int) -> None:
        """Wait no more for a site until it is back."""
        self._began[node] = -float("inf")


@dataclass(frozen=True)
class Letter:
    """A message to a node, and its receiver."""

    to: Any  # whatever the sender knows the receiver by
    node: int
    what: str  # Flower's message type
    message: Mapping[str, Any]
    header: Header


@dataclass(frozen=True)
class Answer:
    """A node's reply; without one, `trouble` is the reason."""

    letter: Letter
    message: Message
    header: Mapping[str, Any]
    trouble: str = ""
    unreadable: bool = False  # something came that is no answer
    broken: bool = False  # the connection failed, so that the same message may be sent again


def _no_answer(letter: Letter, trouble: str, *, unreadable: bool = False, broken: bool = False) -> Answer:
    return Answer(letter, Message({}), {}, trouble, unreadable, broken)


@dataclass
class _Pending:
    """A letter without an answer."""

    letter: Letter
    name: str = ""  # Flower's, of the message under way; empty: to be sent
    connected: str = ""  # when its site had connected as it was sent
    sent: float = 0.0
    failed: float | None = None  # when the connection failed, for the first of several times in a row
    last: Answer | None = None  # what came of it last
    due: float = 0.0  # not sent again before
    backoff: Backoff = field(default_factory=Backoff)


class Correspondence:
    """Letters under way: `send` them, and `poll` for answers.

    A letter whose connection fails is sent again once its site is back, for `outages.wait` seconds; each time `report`
    gets a sentence. A site that is connected and does not answer within `patience` seconds has failed.
    """

    def __init__(
        self,
        lines: Lines,
        patience: float,
        limit: int,
        outages: Outages | None = None,
        report: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.lines, self.patience, self.limit, self.report = lines, patience, limit, report
        self.outages = outages or Outages()
        self._salt = new_salt()
        self._pending: list[_Pending] = []

    @property
    def receivers(self) -> list[Any]:
        """Whose answers are awaited."""
        return [one.letter.to for one in self._pending]

    def send(self, letter: Letter) -> None:
        """Send a letter now if its site is connected, else with the next `poll` that finds it connected."""
        one = _Pending(letter)
        self._pending.append(one)
        if letter.node in set(self.lines.get_node_ids()):
            self._push(one)

    def poll(self) -> list[Answer]:
        """The answers that are there by now, final failures included."""
        named = {one.name: one for one in self._pending if one.name}
        for reply in self.lines.pull_messages(list(named)):
            one = named[reply.metadata.reply_to_message_id]
            one.name = ""
            self._came(one, _opened(one.letter, reply, self.limit))
        online = set(self.lines.get_node_ids())
        self.outages.look([one.letter.node for one in self._pending], online)
        final = [(one, answer) for one in self._pending if (answer := self._settled(one, online)) is not None]
        for one, _ in final:
            self._pending.remove(one)
            self._drop(one)
        return [answer for _, answer in final]

    def _settled(self, one: _Pending, online: set[int]) -> Answer | None:
        """What came of a letter; None while it is under way or will be sent again."""
        letter, now = one.letter, monotonic()
        if one.name and self.lines.since(letter.node) != one.connected:
            self._drop(one)
            self._came(one, _no_answer(letter, "its site was restarted, or lost its connection", broken=True))
        elif one.name and now - one.sent > self.patience:
            return _no_answer(letter, f"no reply within {self.patience:.0f} seconds")
        if one.name:
            return None
        if one.last is not None and not one.last.broken:
            return one.last
        if letter.node not in online:
            return (one.last or _no_answer(letter, _NOT_CONNECTED)) if self.outages.over(letter.node) else None
        if one.failed is not None and now - one.failed >= self.outages.wait:
            return one.last
        self._send_again(one, now)
        return None

    def _came(self, one: _Pending, answer: Answer) -> None:
        """Note what came of a letter; a connection that held for long and fails now is a new trouble."""
        one.last = answer
        if one.failed is None or monotonic() - one.sent > self.outages.wait:
            one.failed = monotonic()
            one.backoff.reset()

    def _send_again(self, one: _Pending, now: float) -> None:
        if one.last is None:  # its site was away from the beginning
            self._push(one)
        elif not one.due:
            one.due = now + one.backoff.next()
        elif now >= one.due:
            one.due = 0.0
            self.report(f"{_called(one.letter)}: {one.last.trouble}: the same message is sent again")
            self._push(one)

    def _push(self, one: _Pending) -> None:
        salt = self._salt if one.last is None else new_salt()
        content = salted(packed(one.letter.message, one.letter.header), salt)
        envelope = Envelope(content, one.letter.node, one.letter.what, ttl=self.patience + 60)
        one.connected, one.sent = self.lines.since(one.letter.node), monotonic()
        (one.name,) = self.lines.push_messages([envelope])

    def _drop(self, one: _Pending) -> None:
        if one.name:
            self.lines.drop_messages([one.name])
            one.name = ""

    def close(self) -> None:
        """Take back what is not answered."""
        for one in self._pending:
            self._drop(one)
        self._pending.clear()


def corresponded(
    lines: Lines,
    letters: Iterable[Letter],
    patience: float,
    limit: int,
    outages: Outages | None = None,
    report: Callable[[str], None] = lambda text: None,
) -> Iterator[Answer]:
    """Send letters, and give the answers as they come; without `outages` no site is waited for."""
    under_way = Correspondence(lines, patience, limit, outages, report)
    try:
        for letter in letters:
            under_way.send(letter)
        while under_way.receivers:
            yield from under_way.poll()
            sleep(POLL)
    finally:
        under_way.close()


def _opened(letter: Letter, reply: Envelope, limit: int) -> Answer:
    """Decode and check a site's reply."""
    if reply.has_error():
        if reply.error.code == UNREADABLE:
            return _no_answer(letter, f"its reply could not be read: {one_line(reply.error.reason)}", unreadable=True)
        silent = reply.error.code == _SILENT
        why = "its site fell silent" if silent else f"its reply did not arrive: {one_line(reply.error.reason)}"
        return _no_answer(letter, why, broken=True)
    try:
        return Answer(letter, *unpacked(unsalted(reply.content), limit))
    except MessageError as error:
        return _no_answer(letter, one_line(error), unreadable=True)


def _called(letter: Letter) -> str:
    """A letter in words, for the log."""
    round, who = letter.header.get("round"), letter.header.get("client")
    if isinstance(round, int):
        return f"round {round + 1}, {letter.header.get('exchange')}, client {who}"
    return f"{letter.what}, site {letter.to}"


def one_line(text: object) -> str:
    """Text of another machine as one line of a screen or a log: nothing in it commands a terminal.

    >>> one_line("its data\\nhas \\x1b[31mchanged")
    'its data has [31mchanged'
    """
    shown = "".join(letter if letter.isprintable() else " " for letter in str(text)[:2000])
    return " ".join(shown.split())[:500]
