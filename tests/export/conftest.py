"""Models that look trained."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import nn

import fedstill
from fedstill.core.streams import Streams
from fedstill.export.export_files import describe
from fedstill.models import build_model, models
from fedstill.models.portable.onnx_file import onnx_bytes
from fedstill.runtime.result import Run
from fedstill.tasks.classification import Classification

CLASSES = ("a", "b", "c", "d", "é")
POINTS = 96


@pytest.fixture(autouse=True)
def same_draws_every_time() -> Iterator[None]:
    with Streams(0).ambient("tests"):
        yield


def task_for(name: str) -> Classification:
    shape = (POINTS, 3) if hasattr(models[name], "points") else (1, 64) if name == "cnn1d" else (1, 8, 8)
    return Classification(CLASSES, shape, (name,))


@cache
def trained(name: str) -> nn.Module:
    """A model whose BatchNorm has seen something, some of its factors negative, as after training."""
    task = task_for(name)
    with Streams(1).ambient("trained", name):
        model = build_model(name, task.shape, len(CLASSES))
        for part in model.modules():
            if isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d):
                assert part.running_mean is not None
                assert part.running_var is not None
                part.running_mean.normal_(0, 0.2)
                part.running_var.uniform_(0.5, 1.5)
                nn.init.uniform_(part.weight, -0.5, 1.5)
                nn.init.normal_(part.bias, 0, 0.2)
    return model.eval()


@cache
def onnx_of(name: str) -> bytes:
    task = task_for(name)
    return onnx_bytes(trained(name), task.shape, describe(task, {"run": "0123"}))


@pytest.fixture
def make_task() -> Callable[[str], Classification]:
    return task_for


@pytest.fixture
def make_trained() -> Callable[[str], nn.Module]:
    return trained


@pytest.fixture
def make_onnx() -> Callable[[str], bytes]:
    return onnx_of


@pytest.fixture(scope="session")
def digits_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A small run that really learnt something."""
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("runs")
    return fedstill.run("centralised", data="digits", model="cnn-bn", rounds=2, out=out)


@pytest.fixture
def two_runs(digits_run: Run, tmp_path: Path) -> list[Run]:
    other = fedstill.run("centralised", data="digits", model="mlp", rounds=1, out=tmp_path)
    return [digits_run, other]
