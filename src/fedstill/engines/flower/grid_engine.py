"""Clients at their own sites: requests and replies are sent over Flower's grid, clients' states stay on site."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from time import monotonic, sleep
from types import TracebackType
from typing import Any, Protocol, Self

from flwr.app import Message as Envelope

from fedstill.core.message import DEFAULT_LIMIT, Message, MessageError
from fedstill.core.protocols import ClientFactory, Exchange, Failure, Profile, Reply, RoundContext
from fedstill.core.records import Reason
from fedstill.core.task import Tensors
from fedstill.engines.flower.encoding import Header, new_salt, packed, salted, unpacked, unsalted

EXCHANGE = "train.exchange"
_POLL = 0.05  # seconds
_REASONS: tuple[Reason, ...] = ("failed", "refused", "abstained")
_SILENT = 5  # Flower's number for a node that is not there any more


class Lines(Protocol):
    """The part of Flower's grid that is needed, and when each site connected."""

    def push_messages(self, messages: Iterable[Envelope]) -> Iterable[str]: ...

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Envelope]: ...

    def get_node_ids(self) -> Iterable[int]: ...

    def since(self, node: int) -> str: ...


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


def corresponded(lines: Lines, letters: Iterable[Letter], patience: float, limit: int) -> Iterator[Answer]:
    """Send letters, and give the answers as they come.

    A site that is not there, falls silent, is restarted or takes longer than `patience` is trouble, not a wait.
    """
    salt, waiting = new_salt(), dict[str, tuple[Letter, str, float]]()
    for letter in letters:
        if letter.node not in lines.get_node_ids():
            yield Answer(letter, Message({}), {}, "its site is not connected")
            continue
        content = salted(packed(letter.message, letter.header), salt)
        envelope = Envelope(content, letter.node, letter.what, ttl=patience + 60)
        connected = lines.since(letter.node)
        (name,) = lines.push_messages([envelope])
        waiting[name] = (letter, connected, monotonic())
    while waiting:
        for reply in lines.pull_messages(list(waiting)):
            letter, _, _ = waiting.pop(reply.metadata.reply_to_message_id)
            yield _opened(letter, reply, limit)
        for name, (letter, connected, sent) in list(waiting.items()):
            if lines.since(letter.node) != connected:
                del waiting[name]
                yield Answer(letter, Message({}), {}, "its site was restarted")
            elif monotonic() - sent > patience:
                del waiting[name]
                yield Answer(letter, Message({}), {}, f"no reply within {patience:.0f} seconds")
        sleep(_POLL)


def _opened(letter: Letter, reply: Envelope, limit: int) -> Answer:
    """Decode and check a site's reply."""
    if reply.has_error():
        silent = reply.error.code == _SILENT
        trouble = "its site fell silent" if silent else f"its reply could not be read: {_one_line(reply.error.reason)}"
        return Answer(letter, Message({}), {}, trouble, unreadable=not silent)
    try:
        return Answer(letter, *unpacked(unsalted(reply.content), limit))
    except MessageError as error:
        return Answer(letter, Message({}), {}, _one_line(error), unreadable=True)


@dataclass
class Flower:
    """Clients at their own sites, one for each node of Flower's grid."""

    lines: Lines
    nodes: Mapping[int, int]  # by client
    run: str  # what sites know the run by
    patience: float = 3600.0  # seconds for one reply
    limit: int = DEFAULT_LIMIT  # bytes of one reply
    at_sites: bool = field(default=True, init=False)

    def open(self, factory: ClientFactory) -> None:
        """Sites make their clients themselves."""

    def dispatch(
        self, exchange: Exchange, jobs: Iterable[tuple[Profile, Message, Tensors]], context: RoundContext
    ) -> Generator[Reply | Failure]:
        self._wait_for_anybody()
        letters = (
            Letter(who, self.nodes[who.id], EXCHANGE, request, self._header(exchange, who, context))
            for who, request, _ in jobs
        )
        for answer in corresponded(self.lines, letters, self.patience, self.limit):
            yield _outcome(answer)

    def _header(self, exchange: Exchange, who: Profile, context: RoundContext) -> dict[str, str | int | float]:
        """All that a site needs beside the request; -1 stands for never."""
        return {
            "run": self.run,
            "exchange": exchange.name,
            "round": context.round,
            "client": who.id,
            "since": -1 if who.last_round is None else who.last_round,
            "kept": -1 if who.kept is None else who.kept.round,
            "state": "" if who.kept is None else who.kept.digest,
        }

    def _wait_for_anybody(self) -> None:
        """While no site at all is connected the round waits: the trouble is the network's or the server's own."""
        nodes = set(self.nodes.values())
        while not nodes & set(self.lines.get_node_ids()):
            sleep(_POLL)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


def answered(outcome: Reply | Failure, kept: str = "") -> tuple[Message, dict[str, str | int | float]]:
    """A site's answer as tensors and header; `kept` is the digest of a state that the reply left behind."""
    if isinstance(outcome, Reply):
        return outcome.message, {"status": "reply", "work": outcome.work, "kept": kept}
    return Message({}), {"status": outcome.reason, "detail": outcome.detail, "work": outcome.work}


def _outcome(answer: Answer) -> Reply | Failure:
    """A site that cannot be reached drops out; one that answers wrongly is refused, or has failed."""
    who, header = answer.letter.to, answer.header
    if answer.trouble:
        return Failure(who, "refused" if answer.unreadable else "dropped", answer.trouble)
    work = header.get("work", 0.0)
    work = float(work) if isinstance(work, int | float) and 0 <= work < 1e18 else 0.0
    if header.get("status") == "reply":
        kept = str(header.get("kept", ""))
        if kept and not _is_digest(kept):
            return Failure(who, "refused", "what it says of its state is not a digest", work)
        return Reply(who, answer.message, None, work, kept)
    reason: Reason = next((known for known in _REASONS if known == header.get("status")), "failed")
    return Failure(who, reason, _one_line(header.get("detail", "it gave no reason")), work)


def _is_digest(text: str) -> bool:
    return len(text) == 64 and all(letter in "0123456789abcdef" for letter in text)


def _one_line(text: object) -> str:
    return " ".join(str(text).split())[:500]
