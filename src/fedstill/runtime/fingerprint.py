"""The fingerprint of all data that a run reads, which is part of its identity."""

from __future__ import annotations

from fedstill.participation.dropout import Dropout
from fedstill.runtime.experiment import Experiment


def fingerprint_of(experiment: Experiment, data: str, proxy: str = "", shared: str = "") -> str:
    """The fingerprint of the data, of a student's proxy and of samples that all share; then of a file of losses."""
    dropout = experiment.dropout.settings
    assert isinstance(dropout, Dropout)
    return data + proxy + shared + dropout.digest
