"""Where clients run. Engines only transport messages and contain no FL logic; all of them give the same bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedstill.core.lazy import lazily

if TYPE_CHECKING:
    from fedstill.engines.in_process import InProcess
    from fedstill.engines.processes import Processes
    from fedstill.engines.registered import WITH_WORKERS, engines, flower_ray, make_engine
    from fedstill.engines.wire import Wire

__all__ = ["WITH_WORKERS", "InProcess", "Processes", "Wire", "engines", "flower_ray", "make_engine"]

# Loaded when first used: a worker process imports this package, and not all its work needs torch.
__getattr__ = lazily(
    __name__,
    {
        "fedstill.engines.in_process": ["InProcess"],
        "fedstill.engines.processes": ["Processes"],
        "fedstill.engines.registered": ["WITH_WORKERS", "engines", "flower_ray", "make_engine"],
        "fedstill.engines.wire": ["Wire"],
    },
)
