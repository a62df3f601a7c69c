"""A limit of open connections: each takes one of the few descriptors with which the server's process writes its files.

A stranger who opens a thousand connections and sends nothing would otherwise end the run, since no file could be
opened any more. Where there are too many, the oldest makes room for the newest: a site that connects meanwhile has
signed its first request before it is the oldest.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

STRANGERS = 128  # connections on which nothing signed has come yet
OF_A_SITE = 32  # ours has about five

Peer = tuple[str, int]


def allow_open_files() -> None:
    """Let this process open as many files and connections as the system permits, which is often more than the usual
    1,024: each site keeps a few connections open.
    """
    with suppress(ImportError, OSError, ValueError):  # not a POSIX system, or a limit that cannot be had
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class LimitedSocket(socket.socket):
    """Listens, and keeps count of what it has accepted; only for the thread that accepts."""

    def __init__(self, family: int, refused: Callable[[str, int | None], None] = lambda why, site: None) -> None:
        super().__init__(family, socket.SOCK_STREAM)
        self.refused = refused
        self._open: dict[int | None, dict[Peer, socket.socket]] = {None: {}}  # by site; None: strangers

    def accept(self) -> tuple[socket.socket, Any]:
        connection, peer = super().accept()
        self._add(None, peer[:2], connection, STRANGERS)
        return connection, peer

    def signed(self, site: int, peer: Peer) -> None:
        """A request that this site signed has come from there."""
        if (connection := self._open[None].pop(peer, None)) is not None:
            self._add(site, peer, connection, OF_A_SITE)

    def _add(self, site: int | None, peer: Peer, connection: socket.socket, most: int) -> None:
        """Note a connection; those that have been closed meanwhile do not count."""
        alive = {where: one for where, one in self._open.get(site, {}).items() if one.fileno() != -1}
        while len(alive) >= most:
            oldest = alive.pop(next(iter(alive)))
            with suppress(OSError):  # its other end has closed it
                oldest.shutdown(socket.SHUT_RDWR)
            self.refused(f"more than {most} connections at once", site)
        alive[peer] = connection
        self._open[site] = alive
