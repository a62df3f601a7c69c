"""A `fedstill` command as a real process that can be killed with its children."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from random import Random
from time import monotonic, sleep
from types import TracebackType
from typing import Self
from uuid import uuid4

from benchmarks.reliability.jobs import Target

FEDSTILL = (sys.executable, "-m", "fedstill")
_MARK = "FEDSTILL_RELIABILITY_JOB"
TEMPORARY = "tmp"  # temporary files of the command, which must be gone when it ends


class Process:
    """A command started in a separate folder; its children are identified by a mark in the environment."""

    def __init__(self, place: Path, words: tuple[str, ...]) -> None:
        (place / TEMPORARY).mkdir(parents=True, exist_ok=True)
        self.mark = uuid4().hex
        self.began = monotonic()
        self.log = place / "stderr.txt"
        with open(self.log, "wb") as errors:
            self.process = subprocess.Popen(
                [*FEDSTILL, *words],
                cwd=place,
                env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(place / TEMPORARY), _MARK: self.mark},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
            )

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    @property
    def age(self) -> float:
        return monotonic() - self.began

    @property
    def code(self) -> int | None:
        return self.process.poll()

    @property
    def last_line(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "no output"

    def kill(self, target: Target, draw: Random) -> bool:
        """kill -9; False if there was no process to kill."""
        if not self.alive:
            return False
        if target == "everything":
            os.killpg(self.process.pid, signal.SIGKILL)
        elif target == "the command":
            self.process.kill()
        else:
            workers = self.workers()
            if not workers:
                return False
            with suppress(ProcessLookupError):
                os.kill(draw.choice(workers), signal.SIGKILL)
        return True

    def wait(self, limit: float) -> None:
        try:
            self.process.wait(limit)
        except subprocess.TimeoutExpired:
            self.end()
            raise TimeoutError(f"still running after {limit:.0f} seconds: {self.last_line}") from None

    def workers(self) -> list[int]:
        """The running child processes."""
        return sorted(self.family() - {self.process.pid})

    def family(self) -> set[int]:
        """The running processes with the mark."""
        wanted = f"{_MARK}={self.mark}".encode()
        found = set()
        for place in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended, or belongs to another user
                if wanted in (place / "environ").read_bytes().split(b"\0"):
                    found.add(int(place.name))
        return found

    def survivors(self, grace: float) -> int:
        """Number of child processes that outlive the command by the grace period; they are killed."""
        until = monotonic() + grace
        while (left := self.workers()) and monotonic() < until:
            sleep(0.05)
        for process in left:
            with suppress(OSError):
                os.kill(process, signal.SIGKILL)
        return len(left)

    def end(self) -> None:
        for process in self.family():
            with suppress(OSError):
                os.kill(process, signal.SIGKILL)
        self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.end()
