"""Made-up pools of samples to select from."""

from __future__ import annotations

import torch
from torch import Tensor

from fedstill.core.streams import Streams


def pool(samples: int, classes: int = 4, width: int = 3, name: str = "pool") -> tuple[Tensor, Tensor]:
    numbers = Streams(21).draw(name)
    embeddings = torch.from_numpy(numbers.standard_normal((samples, width))).float()
    return embeddings, torch.from_numpy(2 * numbers.standard_normal((samples, classes))).float()
