"""The memory that this process takes at most, where the system tells."""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Peak:
    """In bytes; known when what was measured is over."""

    bytes: int = 0


@contextmanager
def measured_peak() -> Iterator[Peak]:
    """The peak of this process while this is open; where the system keeps no such peak, that since it began."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # on Linux the peak begins anew
    found = Peak()
    yield found
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        found.bytes = next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration, ValueError):
        unit = 1 if sys.platform == "darwin" else 1024
        found.bytes = unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
