"""A whole deployment on this machine: a server without data, and sites with one shard each.

Every process is a child of this one, and none outlives it.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import sleep
from types import TracebackType
from typing import IO, Self

from fedstill.core import hardware
from fedstill.core.errors import RunError

_log = logging.getLogger(__name__)

PARENT = "FEDSTILL_PARENT"  # whose death a child must not outlive
_COMMAND = "import sys; from fedstill.cli import main; sys.argv[0] = 'fedstill'; main()"


def die_with_parent() -> None:
    """Called in a child process: exit as soon as the parent process has ended."""
    parent = os.environ.get(PARENT)
    if parent is not None:
        threading.Thread(target=_watch, args=(int(parent),), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        sleep(0.5)
    os._exit(1)


@dataclass
class LocalDeployment:
    """Commands of `fedstill deploy`, started in the background, each with a log, and stopped together."""

    logs: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _files: list[IO[bytes]] = field(default_factory=list)

    def start(self, name: str, arguments: Sequence[str], output: IO[bytes] | None = None) -> None:
        self.logs.mkdir(parents=True, exist_ok=True)
        log = open(self.logs / f"{name}.log", "ab")  # noqa: SIM115 - closed with the company
        self._files.append(log)
        self.processes[name] = subprocess.Popen(
            [*hardware.python_command(), "-c", _COMMAND, "deploy", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log if output is None else output,
            stderr=log,
            env=hardware.child_environment(**{PARENT: str(os.getpid()), **self.environment}),
            start_new_session=True,  # Ctrl-C is for us; we stop them
        )

    def wait(self, name: str, trouble: Callable[[], str | None] = lambda: None) -> None:
        """Wait until a process has ended; its failure, another process ending first, or `trouble` is an error."""
        while (code := self.processes[name].poll()) is None:
            if why := trouble():
                raise RunError(why)
            for other, process in self.processes.items():
                if other != name and process.poll() not in (None, 0):
                    raise RunError(f"{other} ended early: {self.last_words(other)}")
            with suppress(subprocess.TimeoutExpired):
                self.processes[name].wait(timeout=0.2)
        if code != 0:
            raise RunError(f"{name} ended with code {code}: {self.last_words(name)}")

    def last_words(self, name: str) -> str:
        lines = (self.logs / f"{name}.log").read_text(errors="replace").split("\n")
        return next((line for line in reversed(lines) if line.strip()), "it said nothing")

    def kill(self, name: str) -> None:
        process = self.processes.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                _log.info("process %d did not end within 5 s: it is killed", process.pid)
                process.kill()
                process.wait()
        for file in self._files:
            file.close()
