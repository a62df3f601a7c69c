"""Threads, cores and devices: one thread where bits count, as many workers as cores, and a device that is there."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from fedstill.core.errors import InputError, did_you_mean

DEVICES = ("cpu", "cuda", "mps")
_VISIBLE = "CUDA_VISIBLE_DEVICES"  # which GPUs a process sees, by number or by name


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


def python_command() -> list[str]:
    """The words that start Python in a process of its own."""
    return [sys.executable]


def child_environment(**more: str) -> dict[str, str]:
    """For a process that computes beside this one: a single thread, the same modules, and whatever more is given."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {**os.environ, **threads, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry), **more}


def usable_cores() -> int:
    """The cores that this process may use, which in a container are often fewer than there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def devices_here() -> tuple[str, ...]:
    """The devices of this machine, GPUs by their number."""
    import torch

    gpus = [f"cuda:{number}" for number in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    return ("cpu", *gpus, *(["mps"] if torch.backends.mps.is_available() else []))


def check_device(device: str) -> None:
    """Refuse a device that is unknown, or not in this machine."""
    kind, colon, number = device.partition(":")
    if kind not in DEVICES or (colon and not (kind == "cuda" and number.isdecimal())):
        raise InputError(f"unknown device {device!r}: {did_you_mean(device, (*DEVICES, 'cuda:0'))}")
    here = devices_here()
    if not any(one.partition(":")[0] == kind for one in here):
        raise InputError(f"this machine has no {kind} device: leave --device out to use the cpu")
    if colon and f"cuda:{int(number)}" not in here:
        raise InputError(f"this machine has no {device} device: there are {', '.join(here)}")


def device_environment(device: str, worker: int) -> dict[str, str]:
    """The environment in which worker `worker` sees its own device only: with `cuda`, workers share out the GPUs.

    A device with a number is that of all workers.
    """
    if device != "cuda":
        return {}
    visible = [one.partition(":")[2] for one in devices_here() if one.startswith("cuda:")]
    named = [one.strip() for one in os.environ.get(_VISIBLE, "").split(",") if one.strip()]
    mine = (named or visible)[worker % len(named or visible)]
    return {_VISIBLE: mine}
