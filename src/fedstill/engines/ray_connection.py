"""The connection to Ray: a cluster that is there already, or a Ray of our own of which nothing is left afterwards.

Most people do without Ray: it is imported when somebody connects, not before.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any

from fedstill.core.errors import InputError

_PATIENCE = 5.0  # seconds until an address counts as dead; Ray itself would go on trying for minutes
_QUIET = {"log_to_driver": False, "logging_level": "ERROR"}
_ACCELERATORS = "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"
# The environment of every process we start on Ray: the number of threads changes bits.
ONE_THREAD = {"env_vars": {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}}


@contextmanager
def connection(address: str | None, cores: int, store: int | None = None) -> Iterator[None]:
    """While this is entered there is the Ray of that address, else one on this machine.

    The cores, and the bytes of its object store where Ray's own choice is not wanted, are those of a Ray on this
    machine. It is ended afterwards; the Ray of an address is left as it was.
    """
    ray = import_module("ray")
    with ExitStack() as afterwards:
        afterwards.callback(_handle_termination, signal.getsignal(signal.SIGTERM))
        # It would print pages about a lost process, among what we print; its own files have them too.
        afterwards.enter_context(_altered("ray._private.worker", "print_to_stdstream", lambda *_, **__: None))
        where = {"address": address} if address else afterwards.enter_context(_on_this_machine(cores, store))
        afterwards.callback(ray.shutdown)
        try:
            # Without a choice about accelerators every start warns of a coming change.
            accelerators = os.environ.get(_ACCELERATORS, "0")
            with _environment({"RAY_USAGE_STATS_ENABLED": "0", _ACCELERATORS: accelerators}):
                ray.init(**where, **_QUIET)
        except (ConnectionError, RuntimeError, ValueError) as error:
            failed = f"cannot use the Ray cluster at {address}" if address else "cannot start a Ray on this machine"
            raise InputError(f"{failed}: {last_line(error)}") from None
        yield


@contextmanager
def named_connection(cores: int) -> Iterator[None]:
    """The Ray that RAY_ADDRESS names, as with everything on Ray, else one on this machine with so many cores."""
    address = os.environ.get("RAY_ADDRESS")
    if address:
        check_answer(address, f"RAY_ADDRESS={address}")
    with connection(address, cores):
        yield


def check_answer(address: str, shown: str) -> None:
    """Refuse at once HOST:PORT where nobody answers; `shown` is the address as its user knows it."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdecimal():  # `auto`, or whatever else Ray may understand
        return
    try:
        socket.create_connection((host, int(port)), _PATIENCE).close()
    except (OSError, OverflowError) as error:
        raise InputError(f"nobody answers at {shown} ({error}): is the Ray cluster running?") from None


def last_line(error: BaseException) -> str:
    """The last line that says something: Ray's messages begin with where, and end with why."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


@contextmanager
def _on_this_machine(cores: int, store: int | None) -> Iterator[dict[str, Any]]:
    """Settings of a Ray that nobody else can reach, and its folder."""
    # Below the shortest path there is: sockets lie in it, and their paths may have about a hundred characters.
    folder = tempfile.mkdtemp(prefix="fedstill-ray-", dir="/tmp" if Path("/tmp").is_dir() else None)
    settings = {"num_cpus": cores, "object_store_memory": store, "include_dashboard": False, "_temp_dir": folder}
    try:
        # Ray does what anybody tells it who can reach it: without a cluster it listens on the loopback alone.
        with _altered("ray._private.ray_constants", "ENABLE_RAY_CLUSTER", False):
            yield {"address": "local", **settings}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _altered(module: str, name: str, value: Any) -> Iterator[None]:
    """Something of Ray's own that it has no option for is different meanwhile; a Ray without it stays as it is."""
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
def _environment(variables: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ |= variables
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _handle_termination(handler: Any) -> None:
    """As before Ray, which leaves a handler of its own behind."""
    if handler is not None and current_thread() is main_thread():
        signal.signal(signal.SIGTERM, handler)
