"""Small data and models of a user's own, as objects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import fedstill

_GENERATOR = np.random.default_rng(5)
X = _GENERATOR.random((48, 5)).astype(np.float32)
Y = np.arange(48) % 3
X_TEST = _GENERATOR.random((12, 5)).astype(np.float32)
Y_TEST = np.arange(12) % 3
SMALL = {"clients": 2, "rounds": 1, "epochs": 1, "batch": 8}


class Rows(Dataset[tuple[Any, int]]):
    """A map-style data set that counts how often it is read."""

    def __init__(self, x: Any = X, y: Any = Y) -> None:
        self.x, self.y, self.reads = x, y, 0

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, row: int) -> tuple[Any, int]:
        self.reads += 1
        return self.x[row], int(self.y[row])


class Net(nn.Module):
    """Returns logits."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.fc1, self.fc = nn.Linear(5, width), nn.Linear(width, 3)

    def forward(self, inputs: Tensor) -> Any:
        return self.fc(torch.relu(self.fc1(inputs)))


def net(kind: type[nn.Module] = Net, *arguments: Any) -> nn.Module:
    """A module with the same weights each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return kind(*arguments)


def started(out: Path, data: Any = (X, Y), model: Any = None, method: str = "fedavg", **settings: Any) -> fedstill.Run:
    """A small run of these objects."""
    model = net() if model is None else model
    return fedstill.run(method, data=data, model=model, out=out, **{**SMALL, **settings})
