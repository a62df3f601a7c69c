"""Centralised training: the baseline on pooled data that federated methods are compared with.

It uses the same training loop and journal: one client holds all data, a round is one epoch, the optimiser's moments are
kept between rounds, and the learning-rate schedule covers all epochs.
"""

from __future__ import annotations

from typing import ClassVar

from fedstill.methods.base import methods
from fedstill.methods.fedavg import FedAvg, ModelSettings


@methods.register("centralised")
class Centralised(FedAvg):
    """Centralised training of one model on the pooled data; one round is one epoch."""

    Options = ModelSettings
    pooled = True
    defaults: ClassVar = {"rounds": 150, "training": {"epochs": 1, "keep_optimiser": True}}
