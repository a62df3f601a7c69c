"""A proxy between sites and server that counts the bytes of TCP connections.

Bytes are counted as transmitted: encrypted, with the overhead of TLS, HTTP and Flower, without TCP and IP headers.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

_BLOCK = 2**16


class Proxy:
    """Listens on a free loopback port and forwards each connection to another port.

    >>> with socket.create_server(("127.0.0.1", 0)) as server, Proxy(server.getsockname()[1]) as proxy:
    ...     site = socket.create_connection(("127.0.0.1", proxy.port))
    ...     there, _ = server.accept()
    ...     site.sendall(b"five!")
    ...     received = there.recv(100)
    ...     there.sendall(b"a dozen back")
    ...     answer = site.recv(100)
    ...     site.close()
    ...     there.close()
    >>> received, answer, proxy.up, proxy.down, proxy.connections
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
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for one in (self._listening, *self._open):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for it
            one.close()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                site, _ = self._listening.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self.to))
                except OSError:  # the server is not up yet; the site will retry
                    site.close()
                    continue
                self.connections += 1
                self._open += [site, server]
                for one in (site, server):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._forward, args=(site, server, "up"), daemon=True).start()
                threading.Thread(target=self._forward, args=(server, site, "down"), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, way: str) -> None:
        with suppress(OSError):
            while block := source.recv(_BLOCK):
                with self._lock:
                    setattr(self, way, getattr(self, way) + len(block))
                target.sendall(block)
        for one in (source, target):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
