"""Machines to run a study on: a Ray cluster that is there already, or a Ray of the study's own on this machine.

What a study writes goes to one folder that all machines share, and its bits are promised for one version of everything.
Both are looked at on every machine before the first run starts there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from hashlib import blake2b
from importlib import import_module
from pathlib import Path
from time import time_ns
from typing import Any

import torch

from fedstill._version import __version__
from fedstill.core.errors import InputError
from fedstill.data.roots import VARIABLE, data_root
from fedstill.engines.ray_connection import ONE_THREAD, check_answer, connection, last_line
from fedstill.runtime.experiment import BEHAVIOUR
from fedstill.studies.executor import executor_size
from fedstill.studies.jobs import Place

_LOOKING = 120.0  # seconds that a machine may take to start a worker and look around
_STORE = 80 * 2**20  # bytes: close to the least that Ray accepts, since only configurations pass through it


def find_ray() -> Any:
    """The package, which most people do without."""
    try:
        return import_module("ray")
    except ImportError:
        raise InputError("the executor ray needs the extra fedstill[ray]: pip install 'fedstill[ray]'") from None


def check_address(address: str | None) -> None:
    """Refuse an address that cannot be one, or where nobody answers."""
    if address is None or address == "auto":
        return
    host, _, port = address.rpartition(":")
    if "/" in address or not host or not port.isdecimal():
        raise InputError(
            f"{address!r} is no address of a Ray cluster: write HOST:PORT of its head, or auto, and start the study on "
            "one of its machines"
        )
    check_answer(address, address)


@contextmanager
def connected(address: str | None, workers: int | None) -> Iterator[int]:
    """While this is entered there is a Ray; gives how many lessons it can do at a time.

    A Ray that this process uses already stays as it is, a cluster is left again, and one of our own is ended.
    """
    ray = find_ray()
    if ray.is_initialized():
        if address is not None:
            raise InputError("this process uses a Ray already: leave the address out")
        yield _cores(ray, workers)
        return
    with connection(address, executor_size(workers, "ray"), _STORE):
        yield _cores(ray, workers)


def _cores(ray: Any, workers: int | None) -> int:
    return executor_size(workers, "ray", cores=int(ray.cluster_resources().get("CPU", 0)) or 1)


def rooted(place: Place) -> Place:
    """The same place, with the data where this process would look for it: other machines have other defaults."""
    given = None if place.data_root is None else Path(place.data_root)
    return replace(place, data_root=str(data_root(given).absolute()))


def arrive(here: str) -> None:
    """Go where the study was started, so that paths mean the same; a machine without that folder stays where it is."""
    with suppress(OSError):
        os.chdir(here)


def look_around(here: str, place: Place, token: str) -> dict[str, Any]:
    """What a machine has and sees of a study; done on every machine, this one too."""
    arrive(here)
    root = Path(str(place.data_root))
    return {
        "versions": f"fedstill {__version__} (behaviour {BEHAVIOUR}) with torch {torch.__version__}",
        "token": (Path(place.out) / token).is_file(),
        "data": sorted(path.name for path in root.iterdir()) if root.is_dir() else None,
        "plugins": {file: _digest(Path(file)) for file in place.own.plugins},
    }


def check_machines(place: Place, named_root: bool) -> None:
    """Refuse a cluster unless every machine that can work on the study sees its folders and runs the same versions."""
    ray = find_ray()
    scheduling = import_module("ray.util.scheduling_strategies")
    token = Path(place.out) / f".seen-{os.getpid()}-{time_ns()}"
    token.touch()
    try:
        question = (os.getcwd(), place, token.name)
        asked = ray.remote(look_around)
        answers = {}
        for node in ray.nodes():
            if node["Alive"] and node["Resources"].get("CPU"):
                there = scheduling.NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
                told = asked.options(num_cpus=0, max_retries=0, runtime_env=ONE_THREAD, scheduling_strategy=there)
                answers[told.remote(*question)] = f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"
        expected = look_around(*question)
        for answer, machine in answers.items():
            try:
                seen = ray.get(answer, timeout=_LOOKING)
            except ray.exceptions.RayError as error:
                why = f"is fedstill {__version__} installed there? ({last_line(error)})"
                raise InputError(f"the machine {machine} cannot take part: {why}") from None
            if trouble := difference(expected, seen, place, named_root):
                raise InputError(f"the machine {machine} {trouble}")
    finally:
        token.unlink(missing_ok=True)


def difference(here: Mapping[str, Any], there: Mapping[str, Any], place: Place, named_root: bool = True) -> str | None:
    """What keeps a machine from working on this machine's study, as the rest of a sentence.

    Whose data root nobody has named may have another one, or none: the study's data may need no files.
    """
    if there["versions"] != here["versions"]:
        return f"has {there['versions']}, and this one {here['versions']}: install the same on all of them"
    if not there["token"]:
        return f"does not see the folder {Path(place.out).absolute()}: choose an --out that all machines share"
    if named_root and there["data"] != here["data"]:
        return f"does not see the same in the data root {place.data_root}: it must be a folder that all machines share"
    for file, digest in here["plugins"].items():
        if there["plugins"][file] != digest:
            return f"does not have the same plugin {file}: put it where all machines see it"
    return None


def names_root(place: Place) -> bool:
    """Whether somebody has said where the data is."""
    return place.data_root is not None or bool(os.environ.get(VARIABLE))


def _digest(file: Path) -> str | None:
    return blake2b(file.read_bytes()).hexdigest() if file.is_file() else None
