"""Federated learning and knowledge distillation.

>>> import fedstill
>>> result = fedstill.run("fedavg", data="digits", rounds=1, clients=3, out=getfixture("tmp_path"))
>>> 0 < result.accuracy <= 1
True

The functions are the verbs of the command line, with its words for settings. The modules `aggregation`, `boxes`,
`flower`, `kernels`, `losses` and `partitions` are pieces for programs without Fedstill's loop. What is in `__all__`,
here and in these modules, keeps working: a name or argument that is to go stays for at least one more minor release,
with a DeprecationWarning that names what replaces it. Everything else may change in any release.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from fedstill._version import __version__
from fedstill.core.lazy import lazily
from fedstill.core.views import provide_views

if TYPE_CHECKING:
    from fedstill import aggregation as aggregation
    from fedstill import boxes as boxes
    from fedstill import flower as flower
    from fedstill import kernels as kernels
    from fedstill import losses as losses
    from fedstill import partitions as partitions
    from fedstill.audit import Audit, audit
    from fedstill.core.errors import FedstillError, InputError, RunError
    from fedstill.data.objects import dataset
    from fedstill.detection.pretrain import Pretrained, pretrain
    from fedstill.detection.scans import Scan, detect
    from fedstill.export import export
    from fedstill.live.page_server import LivePage, watch
    from fedstill.models.own_models import Model
    from fedstill.queries.query_function import query
    from fedstill.queries.transfer import Asked
    from fedstill.report import report
    from fedstill.report.comparison import Comparison, compare
    from fedstill.report.run_list import RunList, runs
    from fedstill.runtime.callbacks import Callback, StopRun
    from fedstill.runtime.experiment import Experiment
    from fedstill.runtime.launch import distill, egress, run
    from fedstill.runtime.prediction import Prediction, predict
    from fedstill.runtime.result import Run, load_run
    from fedstill.runtime.run_verification import Contradiction, Verified
    from fedstill.studies.results import Results
    from fedstill.studies.study import Study, study
    from fedstill.studies.verification import verify
    from fedstill.tracking.tracker import TrackedRun, Tracker

logging.getLogger(__name__).addHandler(logging.NullHandler())  # nothing is shown unless the user asks for it

# Loaded when first used, so that `import fedstill` and `fedstill --help` do not wait for torch.
_HOMES = {
    "fedstill.audit": ("Audit", "audit"),
    "fedstill.runtime.experiment": ("Experiment",),
    "fedstill.runtime.callbacks": ("Callback", "StopRun"),
    "fedstill.core.errors": ("FedstillError", "InputError", "RunError"),
    "fedstill.data.objects": ("dataset",),
    "fedstill.export": ("export",),
    "fedstill.live.page_server": ("LivePage", "watch"),
    "fedstill.models.own_models": ("Model",),
    "fedstill.queries.query_function": ("query",),
    "fedstill.queries.transfer": ("Asked",),
    "fedstill.runtime.launch": ("distill", "egress", "run"),
    "fedstill.runtime.prediction": ("Prediction", "predict"),
    "fedstill.detection.pretrain": ("Pretrained", "pretrain"),
    "fedstill.runtime.result": ("Run", "load_run"),
    "fedstill.detection.scans": ("Scan", "detect"),
    "fedstill.report": ("report",),
    "fedstill.report.comparison": ("Comparison", "compare"),
    "fedstill.report.run_list": ("RunList", "runs"),
    "fedstill.studies.results": ("Results",),
    "fedstill.runtime.run_verification": ("Contradiction", "Verified"),
    "fedstill.studies.study": ("Study", "study"),
    "fedstill.studies.verification": ("verify",),
    "fedstill.tracking.tracker": ("TrackedRun", "Tracker"),
}

__all__ = [
    "Asked",
    "Audit",
    "Callback",
    "Comparison",
    "Contradiction",
    "Experiment",
    "FedstillError",
    "InputError",
    "LivePage",
    "Model",
    "Prediction",
    "Pretrained",
    "Results",
    "Run",
    "RunError",
    "RunList",
    "Scan",
    "StopRun",
    "Study",
    "TrackedRun",
    "Tracker",
    "Verified",
    "__version__",
    "audit",
    "compare",
    "dataset",
    "detect",
    "distill",
    "egress",
    "export",
    "load_run",
    "predict",
    "pretrain",
    "query",
    "report",
    "run",
    "runs",
    "study",
    "verify",
    "watch",
]


_MODULES = ("aggregation", "boxes", "flower", "kernels", "losses", "partitions")

__getattr__ = lazily(__name__, _HOMES, _MODULES)

provide_views(
    {
        "figure of runs": ("fedstill.report.run_plots", "plot_runs"),
        "terminal display of a run": ("fedstill.cli.progress", "RunDisplay"),
        "terminal display of a study": ("fedstill.cli.progress", "StudyDisplay"),
    }
)

# Three functions have the names of packages. Importing a package puts it in the function's place, but only the first
# time: so these are imported here, and their names are then given back to the functions.
if not TYPE_CHECKING:
    import fedstill.audit
    import fedstill.export
    import fedstill.report  # noqa: F401

    del audit, export, report


def __dir__() -> list[str]:
    return [*__all__, *_MODULES]
