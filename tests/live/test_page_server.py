"""The page over HTTP: what it serves, and to whom."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPResponse
from pathlib import Path

import pytest

import fedstill
from fedstill.core.errors import InputError
from fedstill.live.page_access import PageAccess
from fedstill.live.page_requests import _ASSETS

from .conftest import MakeFolder


def ask(page: fedstill.LivePage, path: str, method: str = "GET", **headers: str) -> tuple[HTTPResponse, bytes]:
    line = http.client.HTTPConnection("127.0.0.1", int(page.url.partition("?")[0].rpartition(":")[2].strip("/")), 10)
    line.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    reply = line.getresponse()
    return reply, reply.read()


@pytest.fixture
def page(make_folder: MakeFolder) -> Iterator[fedstill.LivePage]:
    make_folder("secret-1").joinpath("model-best.safetensors").write_bytes(b"weights")
    folder = make_folder("fedavg-<b>-2", settings={"data": "</script><script>alert(1)</script>"}).parent
    with fedstill.watch(folder, port=0) as page:
        yield page


@pytest.fixture
def open_page(make_folder: MakeFolder) -> Iterator[fedstill.LivePage]:
    with fedstill.watch(make_folder("a-1").parent, host="0.0.0.0", port=0) as page:
        yield page


def test_the_page_its_parts_and_what_it_shows(page: fedstill.LivePage) -> None:
    assert page.token is None
    for path, (_, kind) in _ASSETS.items():
        reply, body = ask(page, path)
        assert (reply.status, reply.headers["Content-Type"]) == (200, kind), path
        assert b"http://" not in body.replace(b"http://www.w3.org/2000/svg", b""), "nothing from elsewhere"
        assert b"https://" not in body
        assert "default-src 'none'" in reply.headers["Content-Security-Policy"]
        assert "unsafe" not in reply.headers["Content-Security-Policy"]
        assert reply.headers["X-Content-Type-Options"] == "nosniff"
        assert reply.headers["Cache-Control"] == "no-store"
    html = ask(page, "/")[1]
    assert b"<script>" not in html
    assert b"style=" not in html
    reply, body = ask(page, "/state.json")
    names = {run["name"]: run["id"] for run in json.loads(body)["runs"]}
    assert set(names) == {"secret-1", "fedavg-<b>-2"}
    assert reply.headers["Content-Type"] == "application/json", "a browser runs nothing of it"
    runs = json.loads(ask(page, f"/runs.json?id={names['secret-1']}&id=x")[1])["runs"]
    assert [Path(model["file"]).name for model in runs[0]["models"]] == ["model-best.safetensors"]


@pytest.mark.parametrize(
    "path",
    [
        *(
            "/secret-1/model-best.safetensors",
            "/../runs/secret-1/config.json",
            "/..%2f..%2fetc%2fpasswd",
            "//etc/passwd",
        ),
        *("/watch.py", "/assets/watch.js", "/%00", "/state.json/..", "*"),
    ],
)
def test_no_other_path_is_answered(page: fedstill.LivePage, path: str) -> None:
    reply, body = ask(page, path)
    assert reply.status == 404
    assert b"weights" not in body


@pytest.mark.parametrize("query", ["id=../secret-1", "id=secret-1", "id=%00", "id=" + "a" * 5000, "&" * 200, ""])
def test_only_names_of_known_runs_are_answered(page: fedstill.LivePage, query: str) -> None:
    reply, body = ask(page, f"/runs.json?{query}")
    assert reply.status in (200, 400)
    assert reply.status == 400 or json.loads(body) == {"runs": []}


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "X<b>"])
def test_only_get_is_answered(page: fedstill.LivePage, method: str) -> None:
    reply, body = ask(page, "/", method)
    assert (reply.status, body) == (405, b"only GET is answered here\n")


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *(("localhost:1", 200), ("127.0.0.1", 200), ("[::1]:80", 200), ("LOCALHOST", 200), ("127.0.0.2:1", 200)),
        *(("rebound.example.org", 421), ("localhost.example.org", 421), ("192.0.2.1", 421), ("", 421)),
        *(("127.0.0.1.example.org", 421), ("localhost@example.org", 421)),
    ],
)
def test_a_name_of_somebody_elses_that_leads_here_is_refused(page: fedstill.LivePage, host: str, status: int) -> None:
    assert ask(page, "/state.json", Host=host)[0].status == status


def test_broken_requests_leave_the_page_as_it_is(page: fedstill.LivePage) -> None:
    port = int(page.url.rpartition(":")[2].strip("/"))
    for request in (
        b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"\xff" * 70_000,
        b"GET //[ HTTP/1.0\r\n\r\n",
    ):
        with socket.create_connection(("127.0.0.1", port), 5) as line:
            line.sendall(request)
            line.settimeout(5)
            with suppress(ConnectionError):  # refused while it was still being sent
                assert b"Traceback" not in line.recv(4096)
    silent = socket.create_connection(("127.0.0.1", port), 5)  # sends nothing, and holds up nobody
    assert ask(page, "/")[0].status == 200
    silent.close()


def test_other_addresses_ask_for_the_token(open_page: fedstill.LivePage, capfd: pytest.CaptureFixture[str]) -> None:
    token = str(open_page.token)
    assert len(token) >= 32
    assert open_page.url.endswith(f"/?token={token}")
    for path in ("/", "/state.json", "/watch.js", "/nothing", f"/state.json?token={token[:-1]}", "/?token="):
        reply, body = ask(open_page, path)
        assert reply.status == 401, path
        assert b"a-1" not in body
    assert ask(open_page, "/state.json", Authorization=f"Bearer {token}x")[0].status == 401
    assert ask(open_page, "/state.json", Authorization=f"Bearer {token}")[0].status == 200
    assert ask(open_page, "/state.json", Authorization="Bearer ä".encode().decode("latin-1"))[0].status == 401
    reply, _ = ask(open_page, f"/?token={token}")
    cookie = reply.headers["Set-Cookie"]
    assert (reply.status, reply.headers["Location"]) == (303, "/")
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert ask(open_page, "/state.json", Cookie=cookie.partition(";")[0])[0].status == 200
    assert ask(open_page, "/state.json", Cookie=f"{cookie.partition('=')[0]}=other")[0].status == 401
    assert ask(open_page, "/state.json", Cookie=";=;\x07")[0].status == 401
    assert ask(open_page, f"/?token={token}", Host="rebound.example.org")[0].status == 421
    out, err = capfd.readouterr()
    assert token not in out + err, "nothing is logged"


def test_names_of_this_machine_are_known_where_others_can_reach_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "Box.local")
    access = PageAccess("0.0.0.0", 1)
    names = ("box:1", "box.example.org", "192.0.2.7", "[2001:db8::1]:1", "boxer")
    known = {name: access.knows_host(name) for name in names}
    assert known == {"box:1": True, "box.example.org": True, "192.0.2.7": True, "[2001:db8::1]:1": True, "boxer": False}
    assert access.entry("::1").startswith("http://[::1]:1/?token=")


def test_it_can_be_served_on_the_loopback_of_the_next_protocol(make_folder: MakeFolder) -> None:
    try:
        page = fedstill.watch(make_folder("a-1").parent, host="::1", port=0)
    except InputError:  # this machine has no such address
        return
    with page:
        assert page.url.startswith("http://[::1]:")
        assert page.token is None


def test_two_pages_have_two_tokens() -> None:
    assert PageAccess("0.0.0.0", 1).token != PageAccess("0.0.0.0", 1).token
    assert PageAccess("127.0.0.1", 1).token is None


def test_a_page_that_is_closed_frees_its_port(make_folder: MakeFolder) -> None:
    folder = make_folder("a-1").parent
    page = fedstill.watch(folder, port=0)
    port = int(page.url.rpartition(":")[2].strip("/"))
    with pytest.raises(InputError, match="another program uses "):
        fedstill.watch(folder, port=port)
    page.close()
    page.close()
    fedstill.watch([folder], port=port).close()
    assert "fedavg" not in page._repr_html_()


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"folders": "nothing"}, "there is no folder nothing"),
        ({"folders": []}, "nothing to watch"),
        ({"folders": "x" * 300}, "cannot be read"),
        ({"folders": "\x00"}, "cannot be read|there is no folder"),
        ({"port": 65536}, "a port is a number from 0 to 65535"),
        ({"port": -1}, "a port is a number"),
        ({"host": "192.0.2.1"}, "no address of this machine"),
        ({"host": "no.such.host.invalid"}, "no address of this machine"),
        ({"host": "a" * 300}, "no address"),
    ],
)
def test_bad_input_is_a_sentence(given: dict[str, object], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=sentence):
        fedstill.watch(**{"folders": tmp_path, "port": 0, **given})  # type: ignore[arg-type]


def test_folders_that_hold_nothing_of_ours(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(InputError, match="holds no runs, studies or deployment"):
        fedstill.watch(tmp_path, port=0)
    with pytest.raises(InputError, match="is no folder"):
        fedstill.watch(tmp_path / "notes.txt", port=0)
