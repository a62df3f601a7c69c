"""The examples do what their first lines say."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

import fedstill
from fedstill.core.kinds import state_of
from fedstill.core.message import digest

from .pages import ROOT


@pytest.fixture(scope="module")
def fedavg() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fedavg_example", ROOT / "examples" / "fedavg_in_100_lines.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_federated_averaging_in_100_lines_is_fedavg_bit_for_bit(fedavg: ModuleType, tmp_path: Path) -> None:
    model, accuracies = fedavg.federated_averaging()
    run = fedstill.run(
        "fedavg",
        data="digits",
        model="cnn",
        partition={"name": "dirichlet", "alpha": 0.5},
        clients=5,
        rounds=3,
        seed=7,
        out=tmp_path,
    )
    assert digest(model) == digest(state_of(run.model("last")))
    assert accuracies == [record.metrics["accuracy"] for record in run.journal]


def test_it_has_at_most_100_lines(fedavg: ModuleType) -> None:
    assert fedavg.__file__ is not None
    assert len(Path(fedavg.__file__).read_text(encoding="utf-8").splitlines()) <= 100
