"""Processes as a person or the package starts them, without the seconds that each takes to import torch.

`Warm` is a process that has imported everything and computed nothing. It answers every request with a copy of itself
(a fork), so that each runs in a process of its own: what one of them loads, registers or leaves behind is gone with it.
Tests ask for commands and code directly. Worker processes and sites are started by `Warm.command` in place of Python,
also those that a copy starts: see `warm_client.py`.
One with `FOREIGN` has imported none of this package: for tests of what the package imports, and when.
Started anew, as a shell would, are workers in the tests of the pool and of the engine, and commands in those of the
distribution.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NoReturn, Self

if __package__:
    from .warm_client import LENGTH, exit_code, request
else:
    from warm_client import LENGTH, exit_code, request

# What commands, workers and sites import when they begin to work.
EVERYTHING = (
    *("fedstill.cli.app", "fedstill.runtime.launch", "fedstill.studies", "fedstill.audit", "fedstill.report"),
    *("fedstill.engines.processes", "fedstill.data.catalogue", "fedstill.data.digits", "fedstill.models.cnn"),
    *("fedstill.detection.found_objects", "fedstill.devices.fleet_record", "fedstill.queries.outcomes"),
    *("fedstill.queries.query_records", "fedstill.models.kernels.compiled", "sklearn.datasets", "PIL.Image"),
    "torch._dynamo",  # which the first optimiser of torch's own imports
    "fedstill.deploy.site",  # Flower, of which no thread runs before a site connects
)
# The large packages of others that nearly every command needs.
FOREIGN = ("torch", "pydantic", "scipy.stats", "sklearn.datasets", "matplotlib.pyplot", "jinja2", "PIL.Image")
SELDOM = 20_000, 10, 50  # thresholds of the garbage collection in processes that mostly import and compute
_HERE = Path(__file__).parent
_SERVE = "import sys; sys.path.insert(0, sys.argv[1]); from warm import serve; serve(*sys.argv[2:])"
_PARENT = "FEDSTILL_PARENT"  # the process that a site of a rehearsal must not outlive


class Warm:
    """Runs `fedstill WORDS`, `python -c CODE` or `python FILE` in a folder."""

    def __init__(self, imported: Sequence[str] = EVERYTHING) -> None:
        self.imported = imported
        self.process: subprocess.Popen[bytes] | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="warm-")  # short: addresses of sockets have 107 bytes
        self.address = str(Path(self._folder.name, "socket"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *ended: object) -> None:
        if self.process is not None:
            self.process.communicate(timeout=60)  # it ends with its input
        self._folder.cleanup()

    def fedstill(self, words: list[str], folder: Path, **how: Any) -> subprocess.CompletedProcess[str]:
        return self._run(["-m", "fedstill", *words], folder, **how)

    def python(self, code: str, folder: Path, **how: Any) -> subprocess.CompletedProcess[str]:
        return self._run(["-c", code], folder, **how)

    def file(self, path: Path, words: Sequence[str], folder: Path, **how: Any) -> subprocess.CompletedProcess[str]:
        return self._run([str(path), *words], folder, **how)

    def command(self) -> list[str]:
        """What starts a copy in place of Python, for whoever starts processes."""
        self._start()
        return _client(self.address)

    def _run(
        self, words: list[str], folder: Path, environment: Mapping[str, str] | None = None, together: bool = False
    ) -> subprocess.CompletedProcess[str]:
        """With errors where results go, as on a screen, if they are wanted together."""
        self._start()
        with (
            open(os.devnull, "rb") as nothing,
            tempfile.TemporaryFile() as out,
            tempfile.TemporaryFile() as errors,
            socket.socket(socket.AF_UNIX) as line,  # closed by a test that takes too long: the copy ends with it
        ):
            line.connect(self.address)
            files = [one.fileno() for one in (nothing, out, out if together else errors)]
            request(line, words, str(folder), os.environ if environment is None else environment, files)
            code = exit_code(line)
            printed = [_content(file) for file in (out, errors)]
        return subprocess.CompletedProcess(words, code, *printed)

    def _start(self) -> None:
        if self.process is not None:
            return
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(self.address)
            listening.listen(64)
            words = [str(_HERE), str(listening.fileno()), self.address, *self.imported]
            # Consoles are made, and look at these, when the command line is imported.
            screen = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
            self.process = subprocess.Popen(
                [sys.executable, "-c", _SERVE, *words],
                stdin=subprocess.PIPE,
                pass_fds=[listening.fileno()],
                env={**screen, "TERM": "dumb"},
            )


def _content(file: Any) -> str:
    file.seek(0)
    return str(file.read().decode())


def _client(address: str) -> list[str]:
    return [sys.executable, "-IS", str(_HERE / "warm_client.py"), address]


@dataclass
class _Copy:
    """A copy at work: whoever asked for it, its process, and a pipe that ends with it."""

    line: socket.socket
    process: int
    alive: int


def serve(descriptor: str, address: str, *imported: str) -> None:
    """The other end: copies for whoever asks, until the input ends."""
    for name in imported:
        importlib.import_module(name)
    if hardware := sys.modules.get("fedstill.core.hardware"):
        hardware.python_command = lambda: _client(address)
    if app := sys.modules.get("fedstill.cli.app"):
        typer = importlib.import_module("typer.main")
        typer.get_command = cache(typer.get_command)
        typer.get_command(app.app)  # made once, as in the process of the tests
    os.fsync = lambda descriptor: None  # nor do copies wait for the disk: see `conftest.py`
    listening = socket.socket(fileno=int(descriptor))
    chosen = selectors.DefaultSelector()
    chosen.register(listening, selectors.EVENT_READ)
    chosen.register(0, selectors.EVENT_READ)
    gc.freeze()  # nothing of this is ever looked at again, also in copies
    gc.set_threshold(*SELDOM)
    while True:
        for key, _ in chosen.select():
            if key.fileobj not in chosen.get_map():  # of a copy whose end was among these events too
                continue
            if key.fileobj is listening:
                _copied(listening.accept()[0], chosen)
            elif key.data is None:
                return
            elif key.fileobj == key.data.alive:
                _ended(key.data, chosen)
            else:
                _asked_for(key.data, chosen)


def _copied(line: socket.socket, chosen: selectors.BaseSelector) -> None:
    """Read a request and start the copy that it asks for."""
    length, files, *_ = socket.recv_fds(line, LENGTH, 3)
    asked = json.loads(line.recv(int.from_bytes(length, "little"), socket.MSG_WAITALL))
    alive, held = os.pipe()
    child = os.fork()
    if child == 0:
        for key in list(chosen.get_map().values()):
            os.close(key.fd)
        line.close()
        _be(files, **asked)
    for descriptor in (*files, held):
        os.close(descriptor)
    copy = _Copy(line, child, alive)
    chosen.register(line, selectors.EVENT_READ, copy)
    chosen.register(alive, selectors.EVENT_READ, copy)


def _asked_for(copy: _Copy, chosen: selectors.BaseSelector) -> None:
    """Pass on a signal; where whoever asked is gone, the copy goes too."""
    number = copy.line.recv(1)
    os.kill(copy.process, number[0] if number else signal.SIGKILL)
    if not number:
        chosen.unregister(copy.line)


def _ended(copy: _Copy, chosen: selectors.BaseSelector) -> None:
    code = os.waitstatus_to_exitcode(os.waitpid(copy.process, 0)[1])
    chosen.unregister(copy.alive)
    os.close(copy.alive)
    if copy.line in chosen.get_map():
        chosen.unregister(copy.line)
        with suppress(OSError):  # whoever asked has just gone
            copy.line.sendall(b"%d" % code)
    copy.line.close()


def _be(files: Sequence[int], words: list[str], folder: str, environment: dict[str, str]) -> NoReturn:
    """Be the process that was asked for, to its end."""
    os.setsid()  # what a terminal interrupts is whoever asked, who passes it on
    for number, descriptor in enumerate(files):
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdin = os.fdopen(0, "r", encoding="utf-8", closefd=False)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", 1, "utf-8", closefd=False) for number in (1, 2))
    os.environ.clear()
    os.environ.update(environment)
    if _PARENT in environment:
        os.environ[_PARENT] = str(os.getppid())
    if "COLUMNS" in environment and (screen := sys.modules.get("fedstill.cli.screen")):
        screen.console.width = screen.errors.width = int(environment["COLUMNS"])
    os.chdir(folder)
    further = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:2] = ["", *filter(None, further)]  # in place of the folder of this file, and of where it was started
    try:
        _execute(words)
        code: Any = 0
    except SystemExit as left:
        code = left.code
    except KeyboardInterrupt:
        code = -signal.SIGINT
    except BaseException:
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    if code == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code or 0)  # without taking everything down, which takes a second


def _execute(words: list[str]) -> None:
    match words:
        case ["-m", "fedstill", *rest]:
            from fedstill.cli import main

            sys.argv = ["fedstill", *rest]
            main()
        case ["-c", code, *rest]:
            sys.argv = ["-c", *rest]
            exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
        case [file, *_]:
            sys.argv, sys.path[0] = words, str(Path(file).parent)
            runpy.run_path(file, run_name="__main__")
