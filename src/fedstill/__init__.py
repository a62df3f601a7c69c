"""Federated learning and knowledge distillation.

>>> import fedstill
>>> result = fedstill.run("fedavg", data="digits", rounds=1, clients=3, out=getfixture("tmp_path"))
>>> 0 < result.accuracy <= 1
True
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedstill._version import __version__

if TYPE_CHECKING:
    from fedstill.audit import Audit, audit
    from fedstill.config import Experiment
    from fedstill.core.errors import FedstillError, InputError, RunError
    from fedstill.federation.asking import ask
    from fedstill.federation.launch import distill, run
    from fedstill.federation.result import Run
    from fedstill.studies.study import Study, study

# Loaded when first used, so that `import fedstill` and `fedstill --help` do not wait for torch.
_HOMES = {
    "fedstill.audit": ("Audit", "audit"),
    "fedstill.config": ("Experiment",),
    "fedstill.core.errors": ("FedstillError", "InputError", "RunError"),
    "fedstill.federation.asking": ("ask",),
    "fedstill.federation.launch": ("distill", "run"),
    "fedstill.federation.result": ("Run",),
    "fedstill.studies.study": ("Study", "study"),
}

__all__ = [
    "Audit",
    "Experiment",
    "FedstillError",
    "InputError",
    "Run",
    "RunError",
    "Study",
    "__version__",
    "ask",
    "audit",
    "distill",
    "run",
    "study",
]


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"module 'fedstill' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
