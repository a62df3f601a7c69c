"""Boxes to try things on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor


@pytest.fixture
def draw() -> Any:
    """Boxes near the origin, each a stretch in size of the others, with any heading or with none."""

    def make(
        count: int, seed: int, dtype: torch.dtype = torch.float64, *, turned: bool = True, spread: float = 1.0
    ) -> Tensor:
        numbers = torch.rand(count, 7, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        centres = (numbers[:, :3] * 2 - 1) * spread
        headings = (numbers[:, 6:] - 0.5) * (14.0 if turned else 0.0)
        return torch.cat([centres, numbers[:, 3:6] * 2 + 0.05, headings], dim=1).to(dtype)

    return make
