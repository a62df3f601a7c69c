"""A data set of images that are decoded when they are needed (see `readers.lazy_pixels`)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from fedstill.core.dataset import Batch, as_floats, without_answers
from fedstill.data.joined_data import Pieces
from fedstill.data.readers.lazy_pixels import LazyPixels

_AT_ONCE = 256  # images of a piece


class LazyImages:
    """A data set with images that are decoded when they are needed; its other columns are in memory."""

    def __init__(self, pixels: LazyPixels, columns: dict[str, Tensor]) -> None:
        self.pixels = pixels
        self.others = {"sample_id": torch.arange(len(pixels)), **columns}

    def __len__(self) -> int:
        return len(self.pixels)

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Of one image: (channels, height, width)."""
        return self.pixels.shape[1:]

    def batch(self, rows: Tensor) -> Batch:
        inputs = as_floats(self.pixels.read(rows.numpy()))
        return {"inputs": inputs, **{name: column.index_select(0, rows) for name, column in self.others.items()}}

    def prefetch(self, rows: Tensor) -> None:
        """Begin to decode the images of these rows, which are read next."""
        self.pixels.files.prefetch(self.pixels.rows[rows.numpy()].tolist())

    def labels(self) -> Tensor | None:
        return self.others.get("labels")

    def unlabelled(self) -> LazyImages:
        return LazyImages(self.pixels, without_answers(self.others))

    def column(self, name: str) -> Tensor | None:
        """A whole column that is at hand."""
        return self.others.get(name)

    def contents(self) -> Iterator[tuple[str, Tensor | Pieces]]:
        """What a fingerprint is made of: the same as for images in memory."""
        inputs = Pieces(torch.uint8, self.pixels.shape, lambda: self.pixels.split(_AT_ONCE))
        columns: dict[str, Tensor | Pieces] = {**self.others, "inputs": inputs}
        yield from sorted(columns.items(), key=lambda item: item[0])
