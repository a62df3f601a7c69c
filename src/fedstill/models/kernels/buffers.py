"""Reusable large temporary buffers.

New memory pages cost more than the arithmetic on them: with the usual allocator a training step of PointNet++ spends
almost half of its time on page faults. The contents are uninitialised, so users write before they read.
"""

from __future__ import annotations

import torch
from torch import Tensor

MOST = 16
MOST_FLOATS = 2**26


class Buffer:
    """A borrowed buffer of floats, returned to the pool when this object is no longer referenced."""

    def __init__(self, pool: BufferPool, floats: Tensor) -> None:
        self._pool, self._floats = pool, floats

    def view(self, rows: int, columns: int) -> Tensor:
        """The beginning of the buffer, as a matrix."""
        return self._floats[: rows * columns].view(rows, columns)

    def __del__(self) -> None:
        self._pool.take_back(self._floats)


class BufferPool:
    """Free buffers, oldest first; if they are too many or too large in total, the oldest are released."""

    def __init__(self) -> None:
        self._free: list[Tensor] = []

    def lend(self, size: int) -> Buffer:
        """A buffer of at least `size` floats: the smallest free one that is not far too large."""
        fitting = [floats for floats in self._free if size <= floats.numel() <= max(4 * size, 2**20)]
        if fitting:
            chosen = min(fitting, key=Tensor.numel)
            self._free = [floats for floats in self._free if floats is not chosen]
        else:
            # Slightly larger than requested: the next batch has other clouds.
            with torch.inference_mode(False):  # a buffer first used in evaluation may be used in training next
                chosen = torch.empty(size + size // 8, dtype=torch.float32)
        return Buffer(self, chosen)

    def take_back(self, floats: Tensor) -> None:
        self._free.append(floats)
        while len(self._free) > MOST or sum(map(Tensor.numel, self._free)) > MOST_FLOATS:
            self._free.pop(0)


pool = BufferPool()
