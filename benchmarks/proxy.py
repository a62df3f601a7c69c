"""A post between sites and server that passes everything on and counts it: what really crosses TCP.

Bytes are counted as they are on the wire, encrypted, with everything that TLS, HTTP and Flower add; headers of TCP and
IP are not seen from here.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

_BLOCK = 2**16


class Proxy:
    """Listens on a free port of loopback and passes each connection on to another port.

    >>> with socket.create_server(("127.0.0.1", 0)) as server, Proxy(server.getsockname()[1]) as proxy:
    ...     site = socket.create_connection(("127.0.0.1", proxy.port))
    ...     there, _ = server.accept()
    ...     site.sendall(b"five!")
    ...     heard = there.recv(100)
    ...     there.sendall(b"a dozen back")
    ...     answer = site.recv(100)
    ...     site.close()
    ...     there.close()
    >>> heard, answer, proxy.up, proxy.down, proxy.connections
    (b'five!', b'a dozen back', 5, 12, 1)
    """

    def __init__(self, to: int) -> None:
        self.to = to
        self.up = self.down = self.connections = 0
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._listening = socket.create_server(("127.0.0.1", 0))

    @property
    def port(self) -> int:
        return int(self._listening.getsockname()[1])

    def __enter__(self) -> Self:
        threading.Thread(target=self._welcome, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for one in (self._listening, *self._open):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for it
            one.close()

    def _welcome(self) -> None:
        with suppress(OSError):  # closed
            while True:
                site, _ = self._listening.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self.to))
                except OSError:  # the server is not up yet, and the site calls again
                    site.close()
                    continue
                self.connections += 1
                self._open += [site, server]
                for one in (site, server):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._pass_on, args=(site, server, "up"), daemon=True).start()
                threading.Thread(target=self._pass_on, args=(server, site, "down"), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, way: str) -> None:
        with suppress(OSError):
            while block := source.recv(_BLOCK):
                with self._lock:
                    setattr(self, way, getattr(self, way) + len(block))
                target.sendall(block)
        for one in (source, target):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
