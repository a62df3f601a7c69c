"""Limits of time and size for the head of a request: who opens a connection must say what it wants, briefly and soon.

Uvicorn limits how long a connection may be idle after a response, not how slowly the next request may arrive: a byte
now and then would hold a connection forever. Nor does it limit how long a head is: headers without end would fill the
memory before anybody has looked at a signature.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, cast

from uvicorn.protocols.http.auto import AutoHTTPProtocol

_log = logging.getLogger(__name__)

HEAD_SECONDS = 20.0  # from a connection's first instant, or a request's first byte, to the end of its headers
HEAD_BYTES = 64 * 2**10  # of a head; ours have less than one kilobyte
BODY_BYTES = 24 * 2**20  # of one request: Flower cuts arrays into pieces of 20 MiB


class TimedProtocol(asyncio.Protocol):
    """Uvicorn's protocol for one connection, which is cut when the head of a request takes too long, or is too long.

    Why a connection was cut, or that what came is no request, is passed to `refused`: the guard sees none of these.
    """

    seconds = HEAD_SECONDS

    def __init__(self, refused: Callable[[str], None] = lambda why: None, **settings: Any) -> None:
        self._refused = refused
        self._inner = cast(Any, AutoHTTPProtocol)(**settings)
        self._answer_nonsense, self._inner.send_400_response = self._inner.send_400_response, self._nonsense
        self._transport: asyncio.BaseTransport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._unread = 0  # bytes since the last whole head that anybody waits for

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._inner.connection_made(transport)
        self._start()

    def data_received(self, data: bytes) -> None:
        before = self._inner.cycle
        self._inner.data_received(data)
        cycle = self._inner.cycle
        if cycle is not None and not cycle.response_complete:
            self._stop()
            self._unread = 0
            return
        self._start()
        self._unread = len(data) if cycle is not before else self._unread + len(data)
        if self._unread > HEAD_BYTES + _rest_of_body(cycle):
            self._abort(f"the head of a request has over {HEAD_BYTES} bytes")

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        self._inner.connection_lost(exc)

    def eof_received(self) -> bool | None:
        return cast(bool | None, self._inner.eof_received())

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def _start(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self.seconds, self._cut)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _cut(self) -> None:
        self._abort(f"no whole head of a request came within {self.seconds:g} seconds")

    def _nonsense(self, message: str) -> None:
        self._refused("what came is no request")
        self._answer_nonsense(message)

    def _abort(self, why: str) -> None:
        _log.info("a connection was cut: %s", why)
        self._refused(why)
        self._stop()
        cast(asyncio.WriteTransport, self._transport).abort()


def _rest_of_body(cycle: Any) -> int:
    """How many bytes may still come of a request that was refused before its body was read: they are thrown away."""
    if cycle is None:
        return 0
    told = next((value for name, value in cycle.scope["headers"] if name == b"content-length"), b"")
    return min(int(told), BODY_BYTES) if told.isdigit() else 0
