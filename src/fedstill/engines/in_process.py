"""One client after the other, here: no start-up, nothing copied."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from types import TracebackType
from typing import Self

from fedstill.core.client import answer
from fedstill.core.message import Message
from fedstill.core.protocols import ClientFactory, Exchange, Failure, Profile, Reply, RoundContext
from fedstill.core.task import Tensors


class InProcess:
    """One client after the other in this process (the default)."""

    at_sites = False
    factory: ClientFactory

    def open(self, factory: ClientFactory) -> None:
        self.factory = factory

    def dispatch(
        self, exchange: Exchange, jobs: Iterable[tuple[Profile, Message, Tensors]], context: RoundContext
    ) -> Generator[Reply | Failure]:
        for who, request, state in jobs:
            yield answer(self.factory, exchange, who, request, state, context)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass
