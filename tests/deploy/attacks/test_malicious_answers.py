"""Answers of a malicious server to a site's requests: they lead it nowhere else and do not fill its memory."""

from __future__ import annotations

import gzip
import socket
import time
import tracemalloc
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import ClassVar

import pytest
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError

from fedstill.core.errors import InputError
from fedstill.deploy import server_responses
from fedstill.deploy.keys import make_key
from fedstill.deploy.server_responses import check_tree
from fedstill.deploy.site_connection import SiteConnection, SiteConnectionError, _Verified

MOST = 2**20


class _Server(BaseHTTPRequestHandler):
    """Answers every request as a test says."""

    answer: ClassVar[tuple[int, dict[str, str], bytes]] = (500, {}, b"")
    pieces: ClassVar[int] = 1
    asked: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.asked.append(self.path)
        status, headers, body = self.answer
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("connection", "close")
        self.end_headers()
        try:
            for _ in range(self.pieces):
                self.wfile.write(body)
        except OSError:
            self.close_connection = True  # the site has heard enough

    def log_message(self, *about: object) -> None: ...


@pytest.fixture(scope="module")
def server() -> Iterator[HTTPServer]:
    made = HTTPServer(("127.0.0.1", 0), _Server)
    thread = Thread(target=made.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()


def connect(server: HTTPServer) -> None:
    key = make_key()
    with SiteConnection(f"127.0.0.1:{server.server_port}", (key, key.public_key()), None):
        raise AssertionError("it connected")


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_server_cannot_send_a_site_to_other_machines(
    server: HTTPServer, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Server, "asked", [])
    where = f"http://127.0.0.1:{server.server_port}/inside-of-the-hospital"
    monkeypatch.setattr(_Server, "answer", (status, {"location": where, "content-length": "0"}, b""))
    with pytest.raises(SiteConnectionError, match=f"answered with status {status}"):
        connect(server)
    assert _Server.asked == ["/v1/fleet/activate-node"]


@pytest.mark.parametrize("compressed", [False, True])
def test_an_answer_without_end_does_not_fill_a_sites_memory(
    server: HTTPServer, compressed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_responses, "LARGEST", MOST)
    body = gzip.compress(bytes(64 * MOST)) if compressed else bytes(MOST)
    monkeypatch.setattr(_Server, "pieces", 1 if compressed else 256)
    monkeypatch.setattr(_Server, "answer", (200, {"content-encoding": "gzip"} if compressed else {}, body))
    tracemalloc.start()
    with pytest.raises(SiteConnectionError, match="no answer from the server"):
        connect(server)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16 * MOST


def test_an_answer_that_goes_on_for_ever_ends(server: HTTPServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_responses, "_WHOLE", 0.0)
    monkeypatch.setattr(_Server, "answer", (200, {}, b"drop"))
    with pytest.raises(SiteConnectionError, match=r"no answer from the server .*ReadTimeout"):
        connect(server)


def test_a_server_that_takes_connections_and_says_nothing_is_waited_for_as_long_as_was_said() -> None:
    key = make_key()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        line = SiteConnection(f"127.0.0.1:{silent.getsockname()[1]}", (key, key.public_key()), None, patience=0.1)
        began = time.monotonic()
        with pytest.raises(SiteConnectionError, match="no answer from the server"):
            line.__enter__()
        assert time.monotonic() - began < 10, "and not for thirty seconds"


@pytest.mark.parametrize(("seconds", "says"), [(-400, "400 seconds ahead of"), (900, "900 seconds behind")])
def test_a_site_whose_clock_is_wrong_is_told_so(
    server: HTTPServer, seconds: int, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=seconds, milliseconds=500), usegmt=True)
    monkeypatch.setattr(_Server, "date_time_string", lambda self: date)
    monkeypatch.setattr(_Server, "answer", (401, {"content-length": "0"}, b""))
    with pytest.raises(InputError, match=rf"this machine's clock is {says} the server's"):
        connect(server)
    monkeypatch.setattr(_Server, "date_time_string", lambda self: "yesterday")
    with pytest.raises(InputError, match="does not know this site's key"):
        connect(server)


def test_a_message_is_fetched_up_to_its_limit() -> None:
    pieces = {sha256(one).hexdigest(): one for one in (b"a" * 60, b"b" * 60)}
    pull = _Verified(pieces.__getitem__, limit=100)
    first, second = pieces
    assert pull(first) == pieces[first]
    with pytest.raises(ObjectPullError, match="has over 100 bytes"):
        pull(second)


def test_a_graph_of_objects_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    deep = ObjectTree(object_id="0")
    for level in range(6):
        deep = ObjectTree(object_id=str(level), children=[deep])
    with pytest.raises(ValueError, match="over 5 levels"):
        check_tree(deep)
    monkeypatch.setattr(server_responses, "_OBJECTS", 10)
    check_tree(ObjectTree(object_id="a", children=[ObjectTree(object_id="b")] * 9))
    with pytest.raises(ValueError, match="over 10 objects"):
        check_tree(ObjectTree(object_id="a", children=[ObjectTree(object_id="b")] * 10))
