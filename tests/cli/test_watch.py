"""`fedstill watch` as it is typed."""

from __future__ import annotations

import os
import shlex
import signal
import socket
from pathlib import Path
from threading import Timer

import pytest

from fedstill.live.page_server import LivePage

from ..pages import blocks
from .conftest import Call


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("watch nothing", "there is no folder nothing"),
        ("watch --port 70000", "a port is a number from 0 to 65535"),
        ("watch --port x", "--port"),
        ("watch notes", "notes holds no runs"),
        ("watch notes/a.txt", "is no folder"),
        ("watch --host 192.0.2.1 --port 0", "no address of this machine"),
    ],
)
def test_bad_input_is_a_sentence(call: Call, words: str, sentence: str) -> None:
    for name in ("runs", "notes"):
        Path(name).mkdir()
    Path("notes/a.txt").write_text("x")
    code, out, err = call(*words.split())
    assert (code, out) == (2, "")
    assert sentence in err
    assert len(err.strip().splitlines()) == 1


def test_a_port_in_use(call: Call) -> None:
    Path("runs").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        code, _, err = call("watch", "--port", str(port))
    assert code == 2
    assert f"another program uses 127.0.0.1:{port}: choose another --port" in err


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_ends_it(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("runs").mkdir()
    waits = LivePage.wait

    def interrupted(page: LivePage) -> None:
        Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        waits(page)

    monkeypatch.setattr(LivePage, "wait", interrupted)
    code, out, err = call("watch", "--port", "0", "--host", "0.0.0.0")
    assert (code, err) == (0, "")
    assert "/?token=" in out
    assert out.splitlines()[-1] == "ended"


def test_the_commands_of_the_page_about_it_serve_a_page(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each on a free port, without a browser, until it would wait for Ctrl-C."""
    opened: list[str] = []
    monkeypatch.setattr("fedstill.live.page_server.webbrowser.open", opened.append)
    monkeypatch.setattr("fedstill.live.page_server.LivePage.wait", lambda self: None)
    lines = [line for _, body in blocks("docs/watch.md", "bash") for line in body.splitlines()]
    typed = [shlex.split(line)[1:] for line in lines if line.startswith("fedstill ")]
    assert len(typed) == 3
    Path("runs").mkdir()
    Path("clinics/server").mkdir(parents=True)
    for words in typed:
        code, out, err = call(*words, "--port", "0")
        assert (code, err) == (0, ""), words
        assert out.startswith("http://")
    assert len(opened) == 1


def test_the_python_of_the_page_about_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ((_, code),) = blocks("docs/watch.md", "python")
    exec(compile(code, "docs/watch.md", "exec"), {})
