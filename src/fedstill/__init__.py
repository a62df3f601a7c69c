"""Federated learning and knowledge distillation.

>>> import fedstill
>>> result = fedstill.run("fedavg", data="digits", rounds=1, clients=3, out=getfixture("tmp_path"))
>>> 0 < result.accuracy <= 1
True

The functions are the verbs of the command line, with its words for settings. What is in `__all__` keeps working: a name
or argument that is to go stays for at least one more minor release, with a DeprecationWarning that names what replaces
it. Everything else, also what the modules below hold, may change in any release.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedstill._version import __version__

if TYPE_CHECKING:
    from fedstill.audit import Audit, audit
    from fedstill.config import Experiment
    from fedstill.core.errors import FedstillError, InputError, RunError
    from fedstill.export import export
    from fedstill.federation.asking import Asked, query
    from fedstill.federation.launch import distill, egress, pretrain, run
    from fedstill.federation.predicting import Prediction, predict
    from fedstill.federation.pretrain import Pretrained
    from fedstill.federation.result import Run
    from fedstill.federation.scans import Scan, detect
    from fedstill.report import report
    from fedstill.studies.results import Results
    from fedstill.studies.study import Study, study

# Loaded when first used, so that `import fedstill` and `fedstill --help` do not wait for torch.
_HOMES = {
    "fedstill.audit": ("Audit", "audit"),
    "fedstill.config": ("Experiment",),
    "fedstill.core.errors": ("FedstillError", "InputError", "RunError"),
    "fedstill.export": ("export",),
    "fedstill.federation.asking": ("Asked", "query"),
    "fedstill.federation.launch": ("distill", "egress", "pretrain", "run"),
    "fedstill.federation.predicting": ("Prediction", "predict"),
    "fedstill.federation.pretrain": ("Pretrained",),
    "fedstill.federation.result": ("Run",),
    "fedstill.federation.scans": ("Scan", "detect"),
    "fedstill.report": ("report",),
    "fedstill.studies.results": ("Results",),
    "fedstill.studies.study": ("Study", "study"),
}

__all__ = [
    "Asked",
    "Audit",
    "Experiment",
    "FedstillError",
    "InputError",
    "Prediction",
    "Pretrained",
    "Results",
    "Run",
    "RunError",
    "Scan",
    "Study",
    "__version__",
    "audit",
    "detect",
    "distill",
    "egress",
    "export",
    "predict",
    "pretrain",
    "query",
    "report",
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
