"""A `fedstill` command as a real process, to be killed, with all that it starts."""

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
TEMPORARY = "tmp"  # where the command puts what is meant to be gone when it ends


class Process:
    """A command started in a folder of its own; whatever it starts is known by a mark in the environment."""

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
    def last_words(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "without a word"

    def kill(self, target: Target, draw: Random) -> bool:
        """kill -9; False where there was nobody to hit."""
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
            raise TimeoutError(f"it has not ended after {limit:.0f} seconds: {self.last_words}") from None

    def workers(self) -> list[int]:
        """The processes that it has started and that live."""
        return sorted(self.family() - {self.process.pid})

    def family(self) -> set[int]:
        """The processes that carry the mark and live."""
        wanted = f"{_MARK}={self.mark}".encode()
        found = set()
        for place in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it is gone, or somebody else's
                if wanted in (place / "environ").read_bytes().split(b"\0"):
                    found.add(int(place.name))
        return found

    def survivors(self, grace: float) -> int:
        """How many of its processes outlive it by more than a while; they are ended then."""
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
