"""Downloads from a local server: cut connections, wrong checksums, and nothing half-written under the final name."""

from __future__ import annotations

import gzip
import io
import json
import struct
import sys
import tarfile
import threading
from collections.abc import Iterator
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from fedstill.cli import main
from fedstill.core.errors import InputError
from fedstill.data import downloads
from fedstill.data.bundle import datasets
from fedstill.data.catalogue import load
from fedstill.data.downloads import DOWNLOADS, Download, RemoteFile, download_of, fetch
from fedstill.data.file_sources import FromFiles


class Site:
    """Files of a server, which may end its connections early; and the ranges that were asked for."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.cut: dict[str, int] = {}  # bytes after which a connection ends, once
        self.ranges: list[str | None] = []
        self.continues = True
        self.busy = 0  # requests that are answered with 503
        self.says_part = False  # whether it sends all of a file, and calls it the part that was asked for
        self.url = ""


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    held = Site()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name, wanted = self.path.rpartition("/")[2], self.headers.get("Range")
            held.ranges.append(wanted)
            if held.busy:
                held.busy -= 1
                self.send_error(503)
                return
            if name not in held.files:
                self.send_error(404)
                return
            data, start = held.files[name], 0
            if wanted is not None and held.continues:
                start = int(wanted.removeprefix("bytes=").rstrip("-"))
                if start >= len(data):
                    self.send_error(416)
                    return
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
            elif wanted is not None and held.says_part:
                self.send_response(206)
                self.send_header("Content-Range", f"bytes 0-{len(data) - 1}/{len(data)}")
            else:
                self.send_response(200)
            self.send_header("Content-Length", str(len(data) - start))
            self.end_headers()
            self.wfile.write(data[start : start + held.cut.pop(name, len(data))])

        def log_message(self, format: str, *given: object) -> None:
            """Silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    held.url = f"http://127.0.0.1:{server.server_port}/files"
    monkeypatch.setattr(downloads, "_PAUSE", 0.0)
    yield held
    server.shutdown()
    server.server_close()
    thread.join()


def idx(values: np.ndarray) -> bytes:
    head = struct.pack(">HBB", 0, 8, values.ndim) + struct.pack(f">{values.ndim}I", *values.shape)
    return gzip.compress(head + values.astype(np.uint8).tobytes())


@pytest.fixture
def small_mnist(site: Site, monkeypatch: pytest.MonkeyPatch) -> Site:
    """MNIST with forty images, under the names and with the checksums of a download."""
    draw = np.random.default_rng(0)
    names = [file.name for file in DOWNLOADS["mnist"].files]
    labels = np.arange(20) % 10
    for name in names:
        site.files[name] = idx(draw.integers(0, 256, (20, 28, 28)) if "images" in name else labels)
    files = tuple(RemoteFile(f"{site.url}/{name}", name, md5(site.files[name]).hexdigest()) for name in names)
    monkeypatch.setitem(DOWNLOADS, "mnist", Download(files, "its authors state none", "LeCun"))
    return site


def test_a_data_set_is_fetched_and_can_be_loaded(small_mnist: Site, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    folder = fetch("mnist", tmp_path, progress=lambda *what: seen.append(what))
    assert folder == tmp_path / "mnist"
    assert len(load("mnist", tmp_path).train) == 20
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mnist"]
    assert {name: done for name, done, _ in seen} == {name: len(data) for name, data in small_mnist.files.items()}
    asked = len(small_mnist.ranges)
    assert fetch("mnist", tmp_path) == folder
    assert len(small_mnist.ranges) == asked, "what is here is not fetched again"


@pytest.mark.parametrize(("continues", "says_part"), [(True, False), (False, False), (False, True)])
def test_a_cut_connection_is_continued(small_mnist: Site, tmp_path: Path, continues: bool, says_part: bool) -> None:
    name = "train-images-idx3-ubyte.gz"
    small_mnist.cut[name], small_mnist.continues, small_mnist.says_part = 5_000, continues, says_part
    fetch("mnist", tmp_path)
    assert small_mnist.ranges[:2] == [None, "bytes=5000-"]
    assert (tmp_path / "mnist" / name).read_bytes() == small_mnist.files[name]


def test_a_busy_server_is_asked_again(small_mnist: Site, tmp_path: Path) -> None:
    small_mnist.busy = 2
    assert len(load("mnist", fetch("mnist", tmp_path).parent).train) == 20
    small_mnist.busy = 9
    with pytest.raises(InputError, match=r"503 Service Unavailable; try again later, or name another address"):
        fetch("mnist", tmp_path / "other")


def test_a_later_command_goes_on_where_the_first_ended(
    small_mnist: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "train-images-idx3-ubyte.gz"
    monkeypatch.setattr(downloads, "_TRIES", 1)
    small_mnist.cut[name] = 7_000
    with pytest.raises(InputError, match=r"run the command again, and it goes on from 7,000 bytes"):
        fetch("mnist", tmp_path)
    assert not (tmp_path / "mnist").exists()
    fetch("mnist", tmp_path)
    assert small_mnist.ranges[1] == "bytes=7000-"
    assert len(load("mnist", tmp_path).train) == 20


def test_a_wrong_checksum_is_refused_and_nothing_is_left_under_the_name(small_mnist: Site, tmp_path: Path) -> None:
    name, right = "t10k-labels-idx1-ubyte.gz", small_mnist.files["t10k-labels-idx1-ubyte.gz"]
    small_mnist.files[name] = right[:-1] + b"x"
    with pytest.raises(InputError, match=r"is not what its publishers state: its MD5 is \w+, not \w+; it was deleted"):
        fetch("mnist", tmp_path)
    assert not (tmp_path / "mnist").exists()
    assert not list(tmp_path.rglob(f"{name}*"))
    small_mnist.files[name], small_mnist.ranges = right, []
    fetch("mnist", tmp_path)
    assert len(small_mnist.ranges) == 1, "the files that were right are kept"


def test_archives_are_unpacked(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = io.BytesIO()
    with tarfile.open(fileobj=text, mode="w:gz") as packed:
        for name in ("top/a.txt", "top/b.txt"):
            member = tarfile.TarInfo(name)
            member.size = 3
            packed.addfile(member, io.BytesIO(b"abc"))
    site.files["cifar-10-python.tar.gz"] = text.getvalue()
    file = RemoteFile("https://unused.invalid/x", "cifar-10-python.tar.gz", md5(text.getvalue()).hexdigest())
    monkeypatch.setitem(DOWNLOADS, "cifar10", Download((file,), "none", "x", unpack=True))
    folder = fetch("cifar10", tmp_path, mirror=site.url)
    assert sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.txt")) == ["top/a.txt", "top/b.txt"]
    assert [path.name for path in tmp_path.iterdir()] == ["cifar10"]


def test_an_archive_cannot_write_outside_its_folder(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = io.BytesIO()
    with tarfile.open(fileobj=text, mode="w:gz") as packed:
        packed.addfile(tarfile.TarInfo("../../escaped.txt"), io.BytesIO())
    site.files["evil.tar.gz"] = text.getvalue()
    file = RemoteFile(f"{site.url}/evil.tar.gz", "evil.tar.gz", md5(text.getvalue()).hexdigest())
    monkeypatch.setitem(DOWNLOADS, "cifar10", Download((file,), "none", "x", unpack=True))
    with pytest.raises(InputError, match=r"evil\.tar\.gz cannot be unpacked"):
        fetch("cifar10", tmp_path / "root")
    assert not (tmp_path / "root" / "cifar10").exists()
    assert not list(tmp_path.rglob("escaped.txt"))


@pytest.mark.parametrize(
    ("name", "mirror", "sentence"),
    [
        ("digits", None, "digits is made by code and needs no download"),
        ("cinic10", None, "cinic10 cannot be downloaded from here: its authors publish"),
        ("mnits", None, "did you mean 'mnist'"),
        ("mnist", "ftp://elsewhere", "is no address that can be downloaded from"),
        ("mnist", "missing", "404"),
    ],
)
def test_what_cannot_be_fetched(site: Site, tmp_path: Path, name: str, mirror: str | None, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        fetch(name, tmp_path, mirror=site.url if mirror == "missing" else mirror)
    assert not (tmp_path / name).exists()


def test_every_download_is_known_with_licence_citation_and_checksum() -> None:
    for name, wanted in DOWNLOADS.items():
        assert isinstance(datasets[name], FromFiles)
        assert wanted.licence
        assert "http" in wanted.citation
        assert all(len(file.md5) == 32 and file.url.startswith("http") for file in download_of(name).files)


def test_the_command_shows_the_licence_first(
    small_mnist: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def call(*more: str) -> tuple[int, str, str]:
        words = ("data", "get", "mnist", "--mirror", small_mnist.url, "--data-root", str(tmp_path / "root"))
        monkeypatch.setattr(sys, "argv", ["fedstill", *words, *more])
        with pytest.raises(SystemExit) as left:
            main()
        captured = capsys.readouterr()
        return int(left.value.code or 0), captured.out, captured.err

    code, said, complaint = call()
    assert code == 2
    assert "licence: its authors state none" in said
    assert "then say --yes" in complaint
    assert not small_mnist.ranges, "nothing was asked for before the licence was accepted"
    code, said, complaint = call("--yes")
    assert code == 0, complaint
    assert said.index("please cite: LeCun") < said.index("use it with --data mnist")
    assert json.loads(call("--json")[1])["path"] == str(tmp_path / "root" / "mnist")


def test_a_failed_download_can_be_tried_again_at_once(tmp_path: Path, site: Site) -> None:
    with pytest.raises(InputError, match="404"):
        fetch("mnist", tmp_path, site.url)
    with pytest.raises(InputError, match="404"):  # and not: another process downloads it
        fetch("mnist", tmp_path, site.url)
