"""Where clients run. Engines carry messages and decide nothing; all of them give the same bits."""

from __future__ import annotations

from fedstill.core.protocols import Engine
from fedstill.core.registry import Registry
from fedstill.engines.in_process import InProcess
from fedstill.engines.processes import Processes
from fedstill.engines.wire import Wire

engines: Registry[type[InProcess] | type[Processes]] = Registry("engine")
engines.register("in-process")(InProcess)
engines.register("processes")(Processes)
engines.register("wire")(Wire)


def make_engine(name: str, workers: int = 2) -> Engine:
    """An engine by name; only `processes` has workers."""
    kind = engines[name]
    return Processes(workers) if kind is Processes else kind()


__all__ = ["InProcess", "Processes", "Wire", "engines", "make_engine"]
