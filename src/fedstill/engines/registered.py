"""The engines by name."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

from fedstill.core.errors import InputError
from fedstill.core.protocols import Engine
from fedstill.core.registry import Registry
from fedstill.engines.in_process import InProcess
from fedstill.engines.processes import Processes
from fedstill.engines.wire import Wire


def flower_ray(workers: int = 2) -> Engine:
    """N client processes of Flower's simulation on Ray: a cluster's (RAY_ADDRESS), else one on this machine."""
    if not all(find_spec(name) for name in ("flwr", "ray")):
        raise InputError("the engine flower-ray needs the extras: pip install 'fedstill[flower,ray]'")
    # Imported when asked for: Flower and Ray take a second, and most people have neither.
    from fedstill.engines.flower.simulation import FlowerRay

    return FlowerRay(workers)


engines: Registry[Callable[..., Engine]] = Registry("engine")
engines.register("in-process")(InProcess)
engines.register("processes")(Processes)
engines.register("wire")(Wire)
engines.register("flower-ray")(flower_ray)
WITH_WORKERS = ("processes", "flower-ray")


def check_engine(name: str, workers: int = 2, device: str = "cpu") -> None:
    """The refusals of `make_engine` where nothing is to be started, for `--dry-run`."""
    if name == "flower-ray" or engines[name] is not Processes:
        make_engine(name, workers, device)
    elif workers < 1:
        raise InputError(f"workers is {workers}: at least one is needed")


def make_engine(name: str, workers: int = 2, device: str = "cpu") -> Engine:
    """An engine by name; only those that start processes have workers, which share out the devices."""
    make = engines[name]
    if name == "flower-ray" and device != "cpu":
        raise InputError("the flower-ray engine runs on the cpu: use --engine processes with another device")
    if name == "processes":
        return make(workers, device)
    return make(workers) if name in WITH_WORKERS else make()
