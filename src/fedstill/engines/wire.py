"""A test engine: everything encoded to bytes and back, and clients in reversed order.

A method that keeps something outside its messages, or depends on who replied first, gives other bits here.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable

from fedstill.core.client import answer
from fedstill.core.message import Message
from fedstill.core.protocols import Exchange, Failure, Profile, Reply, RoundContext
from fedstill.core.task import Tensors
from fedstill.engines.in_process import InProcess


class Wire(InProcess):
    """For tests: in this process, but everything encoded and in reversed order."""

    def dispatch(
        self, exchange: Exchange, jobs: Iterable[tuple[Profile, Message, Tensors]], context: RoundContext
    ) -> Generator[Reply | Failure]:
        for who, request, state in reversed(list(jobs)):
            outcome = answer(self.factory, exchange, who, _carried(request), _carried(Message(state)), context)
            if isinstance(outcome, Reply):
                kept = None if outcome.state is None else _carried(Message(outcome.state))
                outcome = Reply(who, _carried(outcome.message), kept, outcome.work)
            yield outcome


def _carried(message: Message) -> Message:
    return Message.decode(message.encode())
