"""Clients at their own sites: requests and replies travel over Flower's grid, clients' states do not travel."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field
from time import monotonic, sleep
from types import TracebackType
from typing import Protocol, Self

from flwr.app import Message as Envelope

from fedstill.core.message import DEFAULT_LIMIT, Message, MessageError
from fedstill.core.protocols import ClientFactory, Exchange, Lost, Profile, Reason, Reply, Turn
from fedstill.core.task import Tensors
from fedstill.engines.flower.records import packed, unpacked

EXCHANGE = "train.exchange"
_POLL = 0.05  # seconds
_REASONS: tuple[Reason, ...] = ("failed", "refused", "abstained")


class Lines(Protocol):
    """The part of Flower's grid that is needed, and when each site connected."""

    def push_messages(self, messages: Iterable[Envelope]) -> Iterable[str]: ...

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Envelope]: ...

    def get_node_ids(self) -> Iterable[int]: ...

    def since(self, node: int) -> str: ...


@dataclass
class Flower:
    """Clients at their own sites, one for each node of Flower's grid."""

    lines: Lines
    nodes: Mapping[int, int]  # by client
    run: str  # what a site knows the experiment by
    patience: float = 3600.0  # seconds for one reply
    limit: int = DEFAULT_LIMIT  # bytes of one reply
    at_sites: bool = field(default=True, init=False)

    def open(self, factory: ClientFactory) -> None:
        """Sites make their clients themselves."""

    def carry(
        self, exchange: Exchange, jobs: Iterable[tuple[Profile, Message, Tensors]], turn: Turn
    ) -> Generator[Reply | Lost]:
        self._wait_for_anybody()
        waiting: dict[str, _Sent] = {}
        for who, request, _ in jobs:
            node = self.nodes[who.id]
            if node not in self.lines.get_node_ids():
                yield Lost(who, "failed", "its site is not connected")
                continue
            envelope = Envelope(packed(request, self._header(exchange, who, turn)), node, EXCHANGE)
            connected = self.lines.since(node)
            (name,) = self.lines.push_messages([envelope])
            waiting[name] = _Sent(who, node, connected, monotonic())
        while waiting:
            for reply in self.lines.pull_messages(list(waiting)):
                sent = waiting.pop(reply.metadata.reply_to_message_id)
                yield _outcome(sent.who, reply, self.limit)
            for name, sent in list(waiting.items()):
                if (why := self._given_up(sent)) is not None:
                    del waiting[name]
                    yield Lost(sent.who, "failed", why)
            sleep(_POLL)

    def _header(self, exchange: Exchange, who: Profile, turn: Turn) -> dict[str, str | int | float]:
        """All that a site needs beside the request; -1 stands for never."""
        return {
            "run": self.run,
            "exchange": exchange.name,
            "round": turn.round,
            "client": who.id,
            "since": -1 if who.since is None else who.since,
            "kept": -1 if who.kept is None else who.kept,
        }

    def _wait_for_anybody(self) -> None:
        """While no site at all is connected the round waits: the trouble is the network's or the server's own."""
        nodes = set(self.nodes.values())
        while not nodes & set(self.lines.get_node_ids()):
            sleep(_POLL)

    def _given_up(self, sent: _Sent) -> str | None:
        if self.lines.since(sent.node) != sent.connected:
            return "its site was restarted"
        if monotonic() - sent.at > self.patience:
            return f"no reply within {self.patience:.0f} seconds"
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


@dataclass(frozen=True)
class _Sent:
    """A request on its way: to whom, and when that site had connected."""

    who: Profile
    node: int
    connected: str
    at: float


def answered(outcome: Reply | Lost, kept: str = "") -> tuple[Message, dict[str, str | int | float]]:
    """A site's answer as tensors and header; `kept` is the digest of a state that the reply left behind."""
    if isinstance(outcome, Reply):
        return outcome.message, {"status": "reply", "work": outcome.work, "kept": kept}
    return Message({}), {"status": outcome.reason, "detail": outcome.detail, "work": outcome.work}


def _outcome(who: Profile, reply: Envelope, limit: int) -> Reply | Lost:
    """What a site answered; nothing that it sends is taken on trust."""
    if reply.has_error():
        return Lost(who, "failed", _trouble(reply.error.code, reply.error.reason))
    try:
        message, header = unpacked(reply.content, limit)
    except MessageError as error:
        return Lost(who, "refused", str(error))
    status, work = header.get("status"), header.get("work", 0.0)
    work = float(work) if isinstance(work, int | float) and 0 <= work < 1e18 else 0.0
    if status == "reply":
        kept = str(header.get("kept", ""))
        if kept and not _is_digest(kept):
            return Lost(who, "refused", "what it says of its state is not a digest", work)
        return Reply(who, message, None, work, kept)
    reason: Reason = next((known for known in _REASONS if known == status), "failed")
    return Lost(who, reason, " ".join(str(header.get("detail", "it gave no reason")).split())[:500], work)


def _is_digest(text: str) -> bool:
    return len(text) == 64 and all(letter in "0123456789abcdef" for letter in text)


def _trouble(code: int, reason: str) -> str:
    """Flower's error numbers as words: 5 is a node that fell silent."""
    return "its site fell silent" if code == 5 else f"its reply could not be read: {reason}"[:500]
