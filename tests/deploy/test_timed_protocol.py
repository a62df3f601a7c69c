"""Connections that say nothing, or say it a byte at a time, are cut; others are served meanwhile."""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from fedstill.deploy.deployment_folder import make_deployment, open_server
from fedstill.deploy.server_endpoint import ServerEndpoint
from fedstill.deploy.timed_protocol import TimedProtocol


def cut_after(link: socket.socket, drip: bytes, most: float = 5.0) -> float:
    """Seconds until the server closes a connection on which a byte is sent now and then."""
    start, pieces = time.monotonic(), iter([bytes([one]) for one in drip])
    link.settimeout(0.05)
    while time.monotonic() - start < most:
        try:
            if (piece := next(pieces, b"")) and link.send(piece):
                pass
            if link.recv(100) == b"":
                break
        except TimeoutError:
            continue
        except OSError:
            break
    return time.monotonic() - start


def test_slow_heads_are_cut_and_others_are_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TimedProtocol, "seconds", 0.4)
    make_deployment(tmp_path / "d", 1)
    folder = open_server(tmp_path / "d")
    with ServerEndpoint("127.0.0.1", 0, folder.public_keys(), None) as link:
        place = ("127.0.0.1", link.port)
        with socket.create_connection(place) as silent, socket.create_connection(place) as slow:
            assert 0.3 < cut_after(slow, b"POST /v1/fleet/pull-messages HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 99) < 3
            assert cut_after(silent, b"") < 3
        with socket.create_connection(place) as second:  # a whole request, and then the head of another one, slowly
            second.sendall(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n")
            assert b" 404 " in second.recv(1000)
            assert 0.3 < cut_after(second, b"POST / HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 99) < 3
        with httpx.Client(base_url=f"http://127.0.0.1:{link.port}") as whole:
            assert [whole.post("/v1/fleet/pull-messages").status_code for _ in range(3)] == [401] * 3


def test_heads_without_end_are_cut_before_they_fill_the_memory(tmp_path: Path) -> None:
    """Nobody has looked at a signature yet. A long body after a refusal is thrown away, and the connection stays."""
    make_deployment(tmp_path / "d", 1)
    folder = open_server(tmp_path / "d")
    with ServerEndpoint("127.0.0.1", 0, folder.public_keys(), None) as link:
        for endless in (b"X: " + bytes([97]) * 60_000 + b"\r\n", bytes([97]) * 60_000):  # many headers; one header
            with socket.create_connection(("127.0.0.1", link.port)) as flood:
                flood.sendall(b"POST /v1/fleet/pull-messages HTTP/1.1\r\nHost: a\r\nY: ")
                sent = 0
                with suppress(OSError):
                    while sent < 64 * 2**20:
                        flood.sendall(endless)
                        sent += len(endless)
                assert sent < 32 * 2**20, "what the sockets hold, and not more"
        with httpx.Client(base_url=f"http://127.0.0.1:{link.port}") as stranger:
            for _ in range(2):
                assert stranger.post("/v1/fleet/pull-messages", content=bytes(2**20)).status_code == 401
