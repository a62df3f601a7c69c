"""Federated learning and knowledge distillation.

>>> import fedstill
>>> result = fedstill.run("fedavg", data="digits", rounds=1, clients=3, out=getfixture("tmp_path"))
>>> 0 < result.accuracy <= 1
True
"""

from fedstill._version import __version__
from fedstill.config import Experiment
from fedstill.core.errors import FedstillError, InputError, RunError
from fedstill.data.catalogue import datasets
from fedstill.federation.launch import run
from fedstill.federation.result import Run
from fedstill.methods import methods
from fedstill.models import models

__all__ = [
    "Experiment",
    "FedstillError",
    "InputError",
    "Run",
    "RunError",
    "__version__",
    "datasets",
    "methods",
    "models",
    "run",
]
