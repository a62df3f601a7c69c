"""Federated learning methods that train one shared model, one module per method.

Each module is imported when its method is first looked up. Further packages register more methods (see `core.slices`).
"""

from fedstill.core.protocols import Method
from fedstill.methods.base import methods
from fedstill.methods.fedavg import FedAvg, FedAvgSettings

__all__ = ["FedAvg", "FedAvgSettings", "Method", "methods"]

for _file, _names in {
    "adaptive": ("fedadagrad", "fedadam", "fedyogi"),
    "centralised": ("centralised",),
    "clipped_mean": ("clipped-mean",),
    "ditto": ("ditto",),
    "fedavg": ("fedavg",),
    "fedavgm": ("fedavgm",),
    "fedbn": ("fedbn",),
    "feddyn": ("feddyn",),
    "fedmedian": ("fedmedian",),
    "fednova": ("fednova",),
    "fedprox": ("fedprox",),
    "fine_tuned": ("fine-tuned",),
    "krum": ("krum", "multi-krum"),
    "local_only": ("local-only",),
    "moon": ("moon",),
    "scaffold": ("scaffold",),
    "trimmed_mean": ("trimmed-mean",),
}.items():
    methods.declare(f"fedstill.methods.{_file}", *_names)
methods.declare("fedstill.distillation.distill", "distill")
