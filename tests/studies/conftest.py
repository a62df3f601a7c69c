"""A study that takes a second: three small experiments, each for every seed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

Recipe = dict[str, Any]


@pytest.fixture
def recipe() -> Callable[..., Recipe]:
    """A recipe as a mapping, with another grid, or with settings of the experiment changed."""

    def make(grid: dict[str, Any] | None = None, **changes: Any) -> Recipe:
        experiment = {
            "data": "digits",
            "model": "mlp",
            "clients": 2,
            "rounds": 1,
            "training": {"epochs": 1, "batch": 64},
        }
        usual = {"method": ["fedavg", "fedprox", "centralised"], "seed": [7, 42]}
        return {"about": "Nothing much.", "experiment": {**experiment, **changes}, "grid": grid or usual}

    return make


@pytest.fixture
def written(tmp_path: Path) -> Callable[[Recipe], str]:
    """A recipe as a file."""

    def write(content: Recipe, name: str = "small.yaml") -> str:
        path = tmp_path / name
        path.write_text(yaml.safe_dump(content, sort_keys=False))
        return str(path)

    return write
