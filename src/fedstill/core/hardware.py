"""Threads, cores and devices: one thread where bits count, as many workers as cores, and a device that is there."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from fedstill.core.errors import InputError, did_you_mean

DEVICES = ("cpu", "cuda", "mps")


def one_thread() -> AbstractContextManager[None]:
    """The number of threads changes the order of sums, and so the bits."""
    return threads_of(1)


@contextmanager
def threads_of(count: int) -> Iterator[None]:
    """PyTorch with so many threads, and afterwards with as many as before."""
    import torch  # here, because a process that only starts others does not need it

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def child_environment(**more: str) -> dict[str, str]:
    """For a process that computes beside this one: a single thread, the same modules, and whatever more is given."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {**os.environ, **threads, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry), **more}


def usable_cores() -> int:
    """The cores that this process may use, which in a container are often fewer than there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_device(device: str) -> None:
    """Refuse a device that is unknown, or not in this machine."""
    import torch

    if device not in DEVICES:
        raise InputError(f"unknown device {device!r}: {did_you_mean(device, DEVICES)}")
    present = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not present[device]:
        raise InputError(f"this machine has no {device} device: leave --device out to use the cpu")
