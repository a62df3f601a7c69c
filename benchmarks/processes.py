"""Processes with a time limit, which are ended together with all their child processes."""

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
    """A benchmark process failed, so that there is no result."""


def job(module: str, *arguments: object, environment: dict[str, str] | None = None) -> dict[str, Any]:
    """Run `python -m module` and return the JSON object that is the last line of its output.

    All its child processes end with it. Ray's helpers have their own sessions and outlive a killed driver, so they are
    identified by a mark in their environment.
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
            _end_marked(mark)  # first: without their parent, children cannot be identified
            process.kill()
    if process.returncode:
        raise JobError(f"{module} failed: {(errors.strip().splitlines() or ['no output'])[-1]}")
    result: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
    return result


def _end_marked(mark: str) -> None:
    """Kill processes with the mark and their children: some of Ray's overwrite their environment with a title."""
    parents, marked = {}, set()
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parents[int(place.name)] = int((place / "stat").read_text().rpartition(")")[2].split()[1])
            if mark.encode() in (place / "environ").read_bytes().split(b"\0"):
                marked.add(int(place.name))
    while more := {child for child, parent in parents.items() if parent in marked} - marked:
        marked |= more
    for process in marked:
        with suppress(OSError):
            os.kill(process, signal.SIGKILL)
