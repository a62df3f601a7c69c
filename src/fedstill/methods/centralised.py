"""Centralised training: the reference that federation is measured against.

All data in one place, through the same loop and journal: one client holds everything, a round is an epoch, the
optimiser's moments are kept, and the rate's schedule runs over all epochs.
"""

from __future__ import annotations

from typing import ClassVar

from fedstill.methods.base import methods
from fedstill.methods.fedavg import FedAvg, ModelSettings


@methods.register("centralised")
class Centralised(FedAvg):
    """One model on all the data in one place; a round is an epoch."""

    Options = ModelSettings
    pooled = True
    defaults: ClassVar = {"rounds": 150, "training": {"epochs": 1, "keep_optimiser": True}}
