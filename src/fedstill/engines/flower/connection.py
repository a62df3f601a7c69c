"""The connection to Ray: a cluster that is there already, or a Ray of our own of which nothing is left afterwards."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import ray

from fedstill.core.errors import InputError

_PATIENCE = 5.0  # seconds until an address counts as dead; Ray itself would go on trying for minutes
_QUIET = {"log_to_driver": False, "logging_level": "ERROR"}


@contextmanager
def connected(workers: int) -> Iterator[None]:
    """The Ray that RAY_ADDRESS names, else one on this machine with so many processors."""
    address = os.environ.get("RAY_ADDRESS")
    if address:
        check_address(address)
    with ExitStack() as afterwards:
        afterwards.callback(_restore, signal.getsignal(signal.SIGTERM))
        # It would print pages about a lost process, which is one of our outcomes; its own files have them too.
        afterwards.enter_context(_altered("ray._private.worker", "print_to_stdstream", lambda *_, **__: None))
        where: dict[str, Any] = {"address": address} if address else afterwards.enter_context(_own(workers))
        afterwards.callback(ray.shutdown)
        try:
            with _environment(RAY_USAGE_STATS_ENABLED="0", RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0"):
                ray.init(**where, **_QUIET)
        except (ConnectionError, ValueError, RuntimeError) as error:
            told = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
            raise InputError(f"cannot use Ray ({where['address']}): {told[-1].strip()}") from None
        yield


def check_address(address: str) -> None:
    """Refuse at once an address where nobody answers."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdecimal():
        return  # `auto`, and whatever else Ray may know
    try:
        socket.create_connection((host, int(port)), _PATIENCE).close()
    except (OSError, OverflowError) as error:
        raise InputError(f"nobody answers at RAY_ADDRESS={address} ({error}): is the Ray cluster running?") from None


@contextmanager
def _own(workers: int) -> Iterator[dict[str, Any]]:
    # In the shortest folder there is: sockets lie below it, and their paths may have about a hundred characters.
    folder = tempfile.mkdtemp(prefix="fedstill-", dir="/tmp" if Path("/tmp").is_dir() else None)
    try:
        # Ray does what anybody tells it who can reach it: without a cluster it listens on the loopback alone.
        with _altered("ray._private.ray_constants", "ENABLE_RAY_CLUSTER", False):
            yield {"address": "local", "num_cpus": workers, "include_dashboard": False, "_temp_dir": folder}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _altered(module: str, name: str, value: Any) -> Iterator[None]:
    """Something of Ray's for which it has no option; a Ray without it stays as it is."""
    altered = import_module(module)
    if not hasattr(altered, name):
        yield
        return
    before = getattr(altered, name)
    setattr(altered, name, value)
    try:
        yield
    finally:
        setattr(altered, name, before)


@contextmanager
def _environment(**variables: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ |= variables
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _restore(handler: Any) -> None:
    """Ray leaves a handler of its own behind."""
    if handler is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)
