"""A durable log of the replies of real sites in the current round, written before they are used.

A simulation computes the round that a crash interrupted again, to the same bits. A site cannot be relied on to answer
twice alike: it may be gone, its privacy noise comes from its operating system, and it may refuse to be asked again. So
a deployed server writes each result of each dispatch into the run's folder as it arrives:

exchanges/<round>.<place>.<client>.safetensors     one reply or failure; `place` counts the dispatches of a round

Resumed, it makes the dispatches of the round again, takes what is there, and sends only the requests that are not
answered yet. A result counts only for the request it answers, which is recognised by its digest. All of it is deleted
when the round is committed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from fedstill.core.files import read_file, write_atomically
from fedstill.core.message import Message, digest, under
from fedstill.core.protocols import ClientFactory, Engine, Exchange, Failure, Profile, Reply, RoundContext
from fedstill.core.task import Tensors
from fedstill.runtime.sealed import DAMAGED, sealed, unsealed

Say = Callable[[str], None]
Result = Reply | Failure


class ExchangeLog:
    """The results of one round in a folder, by dispatch and client; it is open to the user of the server only."""

    def __init__(self, folder: Path, note: Say, warn: Say) -> None:
        self.folder, self.note, self.warn = folder, note, warn
        self.round, self.places = 0, 0

    def begin(self, round: int) -> None:
        """Start a round, or go on with it; what is left of other rounds is deleted."""
        self.round, self.places = round, 0
        if not self.folder.is_dir():
            return
        left = set(self.folder.iterdir())
        for path in (ended := {path for path in left if not path.name.startswith(f"{round}.")}):
            path.unlink()
        if left == ended:
            self.folder.rmdir()

    def next_place(self) -> int:
        self.places += 1
        return self.places - 1

    def forget_last(self) -> None:
        """Delete the results of the last dispatch, so that it is made again when the run goes on."""
        for path in self.folder.glob(f"{self.round}.{self.places - 1}.*"):
            path.unlink()

    def write(self, place: int, result: Result, request: str) -> None:
        """Keep a result; `request` is the digest of what it answers."""
        tensors, facts = _packed(result)
        self.folder.mkdir(mode=0o700, exist_ok=True)
        path = self._path(place, result.profile.id)
        write_atomically(path, sealed(tensors, json.dumps({**facts, "request": request})).encode())

    def read(self, place: int, who: Profile, request: str, exchange: str) -> Result | None:
        """A client's recorded result; None where there is none, it is damaged, or it answers another request."""
        path = self._path(place, who.id)
        about = f"round {self.round + 1}: the recorded result of client {who.id} in the exchange {exchange}"
        try:
            data = read_file(path)
            tensors, facts = unsealed(Message.decode(data, limit=len(data)))
            if facts["request"] == request:
                return _unpacked(who, tensors, facts)
            self.warn(f"{about} answers another request than the one that is due now: the client is asked again")
        except FileNotFoundError:
            return None
        except DAMAGED as error:
            self.warn(f"{about} is damaged ({error}): the client is asked again")
        return None

    def _path(self, place: int, client: int) -> Path:
        return self.folder / f"{self.round}.{place}.{client}.safetensors"


class DurableEngine:
    """Wraps an engine: results are written to disk, and recorded results are not requested again."""

    def __init__(self, engine: Engine, log: ExchangeLog) -> None:
        self.engine, self.log = engine, log
        self.at_sites = engine.at_sites

    def open(self, factory: ClientFactory) -> None:
        self.engine.open(factory)

    def dispatch(
        self, exchange: Exchange, jobs: Iterable[tuple[Profile, Message, Tensors]], context: RoundContext
    ) -> Generator[Result]:
        place = self.log.next_place()
        digests: dict[int, str] = {}
        unanswered: list[tuple[Profile, Message, Tensors]] = []
        for job in jobs:
            who, request, _ = job
            digests[who.id] = request_digest(who, request, context)
            result = self.log.read(place, who, digests[who.id], exchange.name)
            if result is None:
                unanswered.append(job)
            else:
                yield result
        if known := len(digests) - len(unanswered):
            where = f"round {context.round + 1}, exchange {exchange.name}"
            self.log.note(f"{where}: {known} of {len(digests)} results were recorded before the server stopped")
        if unanswered:
            with closing(self.engine.dispatch(exchange, unanswered, context)) as results:
                for result in results:
                    self.log.write(place, result, digests[result.profile.id])
                    yield result

    def __enter__(self) -> Self:
        self.engine.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.engine.__exit__(kind, error, trace)


def request_digest(who: Profile, request: Message, context: RoundContext) -> str:
    """Over everything that a site is sent: the message, the exchange, the round, and what counts of its own state."""
    header = {"exchange": context.exchange, "round": context.round, "client": asdict(who), "message": digest(request)}
    return sha256(json.dumps(header, sort_keys=True).encode()).hexdigest()


def _packed(result: Result) -> tuple[Tensors, dict[str, Any]]:
    if isinstance(result, Failure):
        return {}, {"reason": result.reason, "detail": result.detail, "work": result.work, "declined": result.declined}
    state = None if result.state is None else under("state/", result.state)
    facts = {"work": result.work, "kept": result.kept, "stateful": state is not None}
    return {**under("message/", result.message), **(state or {})}, facts


def _unpacked(who: Profile, tensors: Message, facts: dict[str, Any]) -> Result:
    if "reason" in facts:
        return Failure(who, facts["reason"], facts["detail"], facts["work"], facts.get("declined", False))
    state = tensors.part("state/") if facts["stateful"] else None
    return Reply(who, Message(tensors.part("message/")), state, facts["work"], facts["kept"])
