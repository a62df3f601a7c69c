"""Whole processes: started, bounded in time, and gone afterwards with everything they started."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

LIMIT = 900  # seconds
_MARK = "FEDSTILL_BENCHMARK_JOB"


class JobError(RuntimeError):
    """A process that did not do its job: a benchmark that cannot be had, not a result."""


def job(module: str, *arguments: object, environment: dict[str, str] | None = None) -> dict[str, Any]:
    """Run `python -m module` and return the JSON object that is the last line of its output.

    Whatever it started ends with it: Ray's helpers have sessions of their own and outlive a driver that is killed,
    so they are known by a mark in their environment.
    """
    mark = f"{_MARK}={uuid4().hex}"
    with subprocess.Popen(
        [sys.executable, "-m", module, *map(str, arguments)],
        cwd=Path(__file__).parent.parent,
        env={**os.environ, "OMP_NUM_THREADS": "1", **(environment or {}), **dict([mark.split("=")])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            output, errors = process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired as error:
            raise JobError(f"{module} took more than {LIMIT} seconds") from error
        finally:
            process.kill()
            _end_marked(mark)
    if process.returncode:
        raise JobError(f"{module} failed: {(errors.strip().splitlines() or ['without a word'])[-1]}")
    result: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
    return result


def _end_marked(mark: str) -> None:
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark.encode() in (place / "environ").read_bytes().split(b"\0"):
                os.kill(int(place.name), signal.SIGKILL)
