"""Images that are decoded when they are needed, where all of them would need more memory than is allowed.

Decoded images stay in memory up to a limit; the others are decoded again for each batch, by several threads, and those
of the next batch while a model trains on this one. Nothing is evicted: an epoch reads every image once in random order,
so that which ones stay makes no difference. A checksum of each image reveals files that change during a run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from math import prod
from pathlib import Path
from threading import Lock
from typing import Any
from zlib import crc32

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedstill.core.errors import DataChangedError, InputError
from fedstill.data.readers.pictures import ImageForm, decode

_PIECE = 16 * 2**20  # bytes of images that are read at once beside those in memory
Pixels = NDArray[np.uint8]


class DecodedFiles:
    """Decoded image files by number, some of them in memory; a copy in another process begins with none."""

    def __init__(self, paths: Sequence[Path], form: ImageForm, limit: int) -> None:
        self.paths, self.form, self.limit = tuple(paths), form, limit
        self.checksums: NDArray[np.int64] = np.full(len(self.paths), -1, dtype=np.int64)
        self._begin()

    def _begin(self) -> None:
        self.room = self.limit
        self.held: dict[int, Pixels] = {}
        self.coming: dict[int, Future[Pixels]] = {}
        self.lock = Lock()
        self.pool: ThreadPoolExecutor | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {name: vars(self)[name] for name in ("paths", "form", "limit", "checksums")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._begin()

    def keep(self, row: int, pixels: Pixels) -> None:
        """Hold a decoded image, if there is room."""
        with self.lock:
            if pixels.nbytes <= self.room and row not in self.held:
                self.room -= pixels.nbytes
                self.held[row] = pixels

    def first_seen(self, row: int, pixels: Pixels) -> None:
        """Note what an image is when it is decoded for the first time."""
        self.checksums[row] = crc32(np.ascontiguousarray(pixels).data)
        self.keep(row, np.array(pixels))

    def prefetch(self, rows: Sequence[int]) -> None:
        """Begin to decode these images, which are read next."""
        wanted = [row for row in rows if row not in self.held and row not in self.coming]
        if wanted and self.pool is None:
            self.pool = ThreadPoolExecutor(_threads(), thread_name_prefix="decode")
        for row in wanted:
            assert self.pool is not None
            self.coming[row] = self.pool.submit(self._decoded, row)

    def read(self, rows: Sequence[int]) -> Pixels:
        """The images in these rows: (rows, height, width[, 3])."""
        self.prefetch(rows)
        out = np.empty((len(rows), *self.form.shape), dtype=np.uint8)
        got: dict[int, Pixels] = {}
        for place, row in enumerate(rows):
            if (pixels := self.held.get(row)) is None:
                if row not in got:
                    got[row] = self.coming.pop(row).result()
                    self.keep(row, got[row])
                pixels = got[row]
            out[place] = pixels
        return out

    def _decoded(self, row: int) -> Pixels:
        try:
            pixels = decode(self.paths[row], self.form.mode, self.form.size, fit=self.form.fit)
        except InputError as error:
            raise DataChangedError(f"{error}; it could be read when the data set was examined") from error
        if crc32(np.ascontiguousarray(pixels).data) != self.checksums[row]:
            raise DataChangedError(
                f"{self.paths[row]} is not what it was when the data set was examined: run the command again"
            )
        return pixels


def _threads() -> int:
    return len(os.sched_getaffinity(0))


class LazyPixels:
    """Images of one split, which stand for a tensor (images, channels, height, width) of bytes in checks of data."""

    ndim = 4
    dtype = torch.uint8

    def __init__(self, files: DecodedFiles, rows: NDArray[np.int64] | None = None) -> None:
        self.files = files
        self.rows: NDArray[np.int64] = np.arange(len(files.paths)) if rows is None else rows

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def shape(self) -> tuple[int, ...]:
        height, width, *channels = self.files.form.shape
        return (len(self), *(channels or [1]), height, width)

    def is_floating_point(self) -> bool:
        return False

    def __setitem__(self, row: int, pixels: Pixels) -> None:
        self.files.first_seen(int(self.rows[row]), pixels)

    def __getitem__(self, rows: Any) -> LazyPixels:
        return LazyPixels(self.files, self.rows[rows.numpy() if isinstance(rows, Tensor) else rows])

    def split(self, size: int) -> Iterator[Tensor]:
        """All images, up to this number at a time, and fewer where they are large."""
        size = max(1, min(size, _PIECE // prod(self.shape[1:])))
        for start in range(0, len(self), size):
            yield self.read(np.arange(start, min(start + size, len(self))))

    def read(self, rows: NDArray[np.int64]) -> Tensor:
        """Images (rows, channels, height, width)."""
        pixels = torch.from_numpy(self.files.read(self.rows[rows].tolist()))
        return pixels.unsqueeze(1) if pixels.ndim == 3 else pixels.permute(0, 3, 1, 2).contiguous()


def joined_pixels(parts: Sequence[LazyPixels]) -> LazyPixels:
    """Images of several splits of one form, one after the other, within the sum of their limits."""
    files = DecodedFiles(
        [part.files.paths[row] for part in parts for row in part.rows.tolist()],
        parts[0].files.form,
        sum(part.files.limit for part in parts),
    )
    files.checksums = np.concatenate([part.files.checksums[part.rows] for part in parts])
    return LazyPixels(files)
