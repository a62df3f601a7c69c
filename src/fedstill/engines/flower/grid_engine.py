"""Clients at their own sites: requests and replies are sent over Flower's grid, clients' states stay on site."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic, sleep
from types import TracebackType
from typing import Self

from fedstill.core.errors import RunError
from fedstill.core.message import DEFAULT_LIMIT, Message
from fedstill.core.protocols import ClientFactory, Exchange, Failure, Profile, Reply, RoundContext
from fedstill.core.records import Reason
from fedstill.core.task import Tensors
from fedstill.engines.flower.correspondence import POLL, Answer, Letter, Lines, Outages, corresponded, one_line

_log = logging.getLogger(__name__)

EXCHANGE = "train.exchange"
LEAST_WAIT = 30.0  # seconds that a server gives its sites to come back before it ends because none is there
ATTEMPTS = 4  # at one question, the first included
_REASONS: tuple[Reason, ...] = ("failed", "refused", "abstained")


@dataclass
class Flower:
    """Clients at their own sites, one for each node of Flower's grid."""

    lines: Lines
    nodes: Mapping[int, int]  # by client
    run: str  # what sites know the run by
    patience: float = 3600.0  # seconds for one reply
    limit: int = DEFAULT_LIMIT  # bytes of one reply
    outages: Outages = field(default_factory=Outages)  # how long a site that lost its connection is waited for
    sites: Sequence[int] = ()  # what people call them, by client
    report: Callable[[str], None] = _log.info
    at_sites: bool = field(default=True, init=False)

    def open(self, factory: ClientFactory) -> None:
        """Sites make their clients themselves."""

    def dispatch(
        self, exchange: Exchange, jobs: Iterable[tuple[Profile, Message, Tensors]], context: RoundContext
    ) -> Generator[Reply | Failure]:
        self._wait_for_anybody()
        letters: Iterable[Letter] = (
            Letter(who, self.nodes[who.id], EXCHANGE, request, self._header(exchange, who, context))
            for who, request, _ in jobs
        )
        for attempt in range(1, ATTEMPTS + 1):
            again = []
            for answer in corresponded(self.lines, letters, self.patience, self.limit, self.outages, self.report):
                if _is_taken(answer) and attempt < ATTEMPTS:
                    again.append(answer.letter)
                else:
                    yield _outcome(answer)
            if not again:
                return
            letters = [self._further(letter, attempt) for letter in again]

    def _further(self, letter: Letter, attempt: int) -> Letter:
        """The same question under a further attempt: its site answered another one before this server lost others.

        A site accepts as many as its policy says, and counts each.
        """
        where = (
            f"round {int(letter.header['round']) + 1}, {letter.header['exchange']}, client {letter.header['client']}"
        )
        self.report(f"{where}: its site has answered another request: it is asked as attempt {attempt + 1}")
        return replace(letter, header={**letter.header, "attempt": attempt})

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
        """While no site at all is connected the round waits, for a while: the trouble is the network's or our own."""
        nodes, wait = set(self.nodes.values()), max(self.outages.wait, LEAST_WAIT)
        until, said = monotonic() + wait, False
        while not nodes & set(self.lines.get_node_ids()):
            if monotonic() > until:
                raise RunError(
                    f"no site was connected for {wait:.0f} seconds (missing: {self._called()}): see to the network, or"
                    " give --wait more seconds, then run the same command again to go on from the last round"
                )
            if not said:
                self.report(f"no site is connected: waiting {wait:.0f} seconds for {self._called()}")
                said = True
            sleep(POLL)

    def _called(self) -> str:
        return f"site {', '.join(map(str, self.sites or sorted(self.nodes)))}"

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


def _is_taken(answer: Answer) -> bool:
    """Whether a site refuses because it answered another request at that place."""
    return not answer.trouble and answer.header.get("status") == "refused" and answer.header.get("taken") == 1


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
    detail = one_line(header.get("detail", "it gave no reason"))
    return Failure(who, reason, detail, work, declined=reason == "refused")


def _is_digest(text: str) -> bool:
    return len(text) == 64 and all(letter in "0123456789abcdef" for letter in text)
