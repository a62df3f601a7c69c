"""What there is to know of the machine before believing a time."""

from __future__ import annotations

import os


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def load() -> str:
    """How many processes wanted a core in the last minute; over 1 beside our own, figures are noisy."""
    return f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"
