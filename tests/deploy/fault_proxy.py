"""A TCP proxy between sites and a server that disturbs chosen connections, as a bad network does.

It sees TLS records only. A `Fault` names a direction and a place in it: a number of bytes since the connection began,
or the first large piece, which is a part of a model. The script is a list of faults; the first connection that comes to
the place of the first fault is disturbed by it, then the second fault waits for its connection, and so on.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from select import select
from struct import pack
from threading import Lock, Thread
from time import sleep
from types import TracebackType
from typing import Literal, Self

_PIECE, _LARGE = 2**14, 2**12  # bytes
_RESET = pack("ii", 1, 0)  # linger for no time: what closes the connection is a reset

Kind = Literal["delay", "cut", "truncate", "flip", "replay"]
Direction = Literal["to server", "to site"]


@dataclass(frozen=True)
class Fault:
    """What happens to a connection in one direction."""

    kind: Kind
    direction: Direction
    after: int | None = None  # bytes; None: in the midst of a large piece

    def place(self, before: int, data: bytes) -> int | None:
        """Where it strikes in this data, which follows so many bytes; None if it does not."""
        if self.after is None:
            return len(data) // 2 if len(data) >= _LARGE else None
        return self.after - before if before <= self.after < before + len(data) else None


class _Ended(Exception):  # noqa: N818
    """The connection is over."""


class FaultProxy:
    """Listens on a port of its own."""

    def __init__(self, server: int, script: Sequence[Fault] = ()) -> None:
        self.server, self.script = server, list(script)
        self.hit: list[Fault] = []
        self.connections = 0
        self._lock = Lock()
        self._closing = False
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])

    def __enter__(self) -> Self:
        Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing = True
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                site, _ = self._listening.accept()
                self.connections += 1
                Thread(target=self._serve, args=(site,), daemon=True).start()

    def _serve(self, site: socket.socket) -> None:
        with site, suppress(OSError, _Ended), socket.create_connection(("127.0.0.1", self.server)) as server:
            passed: dict[Direction, int] = {"to server": 0, "to site": 0}
            while not self._closing:
                for source in select([site, server], [], [], 0.2)[0]:
                    direction: Direction = "to server" if source is site else "to site"
                    target = server if source is site else site
                    if not (data := source.recv(_PIECE)):
                        return
                    target.sendall(self._disturbed(direction, passed[direction], data, source, target))
                    passed[direction] += len(data)

    def _disturbed(
        self, direction: Direction, before: int, data: bytes, source: socket.socket, target: socket.socket
    ) -> bytes:
        """What is passed on in place of the data, which follows so many bytes."""
        with self._lock:
            if not self.script or self.script[0].direction != direction:
                return data
            if (at := self.script[0].place(before, data)) is None:
                return data
            self.hit.append(self.script.pop(0))
            fault = self.hit[-1]
        return _struck(fault.kind, data, at, source, target)


def _struck(kind: Kind, data: bytes, at: int, source: socket.socket, target: socket.socket) -> bytes:
    match kind:
        case "delay":
            sleep(0.5)
            return data
        case "flip":
            return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        case "replay":
            return data + data
        case "truncate" | "cut":
            target.sendall(data[:at])
    if kind == "cut":
        for one in (source, target):
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    raise _Ended
