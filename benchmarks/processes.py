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
            _end_marked(mark)  # first: once their parent is gone, nobody knows whose children they were
            process.kill()
    if process.returncode:
        raise JobError(f"{module} failed: {(errors.strip().splitlines() or ['without a word'])[-1]}")
    result: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
    return result


def _end_marked(mark: str) -> None:
    """End what carries the mark, and its children: some of Ray's overwrite their environment with a title."""
    parents, doomed = {}, set()
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parents[int(place.name)] = int((place / "stat").read_text().rpartition(")")[2].split()[1])
            if mark.encode() in (place / "environ").read_bytes().split(b"\0"):
                doomed.add(int(place.name))
    while more := {child for child, parent in parents.items() if parent in doomed} - doomed:
        doomed |= more
    for process in doomed:
        with suppress(OSError):
            os.kill(process, signal.SIGKILL)
