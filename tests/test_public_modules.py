"""The public modules are attributes of the package, imported when they are first used."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

import fedstill
from fedstill.detection import boxes
from fedstill.models import kernels

MODULES = ("aggregation", "boxes", "flower", "kernels", "losses", "partitions")

LAZY = """
import sys
import fedstill
assert not {"torch", "numpy", "flwr", *(f"fedstill.{name}" for name in fedstill._MODULES)} & set(sys.modules)
assert fedstill.losses.DKD.__name__ == "DKD"
assert "fedstill.losses" in sys.modules and "torch" in sys.modules
assert not {"flwr", "fedstill.flower", "fedstill.detection", "fedstill.runtime.run"} & set(sys.modules)
"""


def test_nothing_is_imported_before_it_is_used() -> None:
    done = subprocess.run([sys.executable, "-c", LAZY], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", MODULES)
def test_a_module_is_an_attribute_and_all_it_names_is_there(name: str) -> None:
    module = getattr(fedstill, name)
    assert module is import_module(f"fedstill.{name}")
    assert name in dir(fedstill)
    assert module.__doc__
    assert all(getattr(module, public).__doc__ for public in module.__all__ if callable(getattr(module, public)))


def test_kernels_and_boxes_are_those_that_models_and_the_detection_task_use() -> None:
    assert fedstill.kernels.farthest_points is kernels.farthest_points
    assert fedstill.boxes.suppress is boxes.suppress
    assert fedstill.boxes.average_precision is boxes.average_precision


def test_other_names_are_unknown() -> None:
    with pytest.raises(AttributeError, match="no attribute 'loss'"):
        _ = fedstill.loss
