"""A data set that is an object of its own, as a user may write one."""

from __future__ import annotations

from torch import Tensor

from fedstill.core.dataset import Batch, Dataset


class Elsewhere:
    """Data that is not held in memory, so that its columns come in batches only."""

    def __init__(self, data: Dataset) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def batch(self, rows: Tensor) -> Batch:
        return self.data.batch(rows)

    def labels(self) -> Tensor | None:
        return self.data.labels()

    def unlabelled(self) -> Dataset:
        return Elsewhere(self.data.unlabelled())
