"""The geometry of a batch without repeated rows, used by the fast PointNet++ instead of padded groups.

A padded neighbourhood repeats its first point, point dropout makes copies of point 0, and sampling from a cloud with
few locations returns to point 0: all of these are equal rows, which one weighted row represents. The maximum over a
group is unaffected, and BatchNorm's statistics weight rows by their number of copies.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedstill.models.kernels.ops import check_clouds, squared

Array = npt.NDArray[Any]
PIECE = 2**18


class Sampling(Protocol):
    """The sampling parameters of a level."""

    @property
    def centres(self) -> int: ...
    @property
    def radius(self) -> float: ...
    @property
    def neighbours(self) -> int: ...


@dataclass(frozen=True)
class Piece:
    """Some groups of a level and their rows."""

    groups: slice
    rows: slice
    starts: Array
    weight: Array
    root: Array


@dataclass(frozen=True)
class Rows:
    """The distinct rows of one level, ordered by group."""

    source: Array  # int32 (rows): which row of the level below (for the first level: which point of the batch)
    offset: Array  # float32 (rows, 3): coordinates relative to the group's centre (absolute where there is none)
    weight: Array  # float32 (rows): the number of rows of the padded form that this one represents
    starts: Array  # int64 (groups + 1): start of each group's rows
    sources: int  # rows of the level below, 0 where that has no features

    def __len__(self) -> int:
        return len(self.source)

    @property
    def groups(self) -> int:
        return len(self.starts) - 1

    def in_units(self, unit: float) -> Rows:
        """The same rows with coordinates divided by `unit`."""
        return self if unit == 1.0 else replace(self, offset=self.offset / np.float32(unit))

    @cached_property
    def root(self) -> Array:
        return np.sqrt(self.weight)

    @cached_property
    def total(self) -> float:
        """The number of rows of the padded form."""
        return float(self.weight.sum(dtype=np.float64))

    @cached_property
    def moments(self) -> tuple[Array, Array, Array, Array]:
        """Weighted sums: of offsets, of their products, of rows by source, of offsets by source."""
        from fedstill.models.kernels import compiled_geometry

        sums: tuple[Array, Array, Array, Array] = compiled_geometry.moments(
            self.source, self.offset, self.weight, self.sources
        )
        return sums

    def pieces(self, channels: int) -> list[Piece]:
        """Consecutive groups whose rows fit in the cache together, about 2^18 floats each."""
        size = max(1, PIECE // channels)
        pieces: list[Piece] = []
        begin = 0
        while begin < self.groups:
            border = int(np.searchsorted(self.starts, self.starts[begin] + size, side="right")) - 1
            end = min(self.groups, max(border, begin + 1))
            starts = self.starts[begin : end + 1]
            rows = slice(int(starts[0]), int(starts[-1]))
            pieces.append(Piece(slice(begin, end), rows, starts, self.weight[rows], self.root[rows]))
            begin = end
        return pieces


@dataclass(frozen=True)
class Geometry:
    """The rows of the three levels. They depend on the clouds and on the sampling, not on weights.

    So a batch's geometry can be cached while clouds are not augmented, or shared by models with the same sampling.
    """

    level1: Rows
    level2: Rows
    level3: Rows


def compact_geometry(points: Tensor, first: Sampling, second: Sampling) -> Geometry:
    """Sampling and neighbourhoods of two levels, and a third over the whole cloud, for float32 clouds on the CPU."""
    from fedstill.models.kernels import compiled_geometry

    check_clouds(points)
    levels: Any = compiled_geometry.build(
        points.detach().contiguous().numpy(),
        first.centres,
        np.float32(squared(first.radius, torch.float32)),
        first.neighbours,
        second.centres,
        np.float32(squared(second.radius, torch.float32)),
        second.neighbours,
    )
    below = 0
    rows = []
    for source, offset, weight, starts in levels:
        rows.append(Rows(source, offset, weight, starts, below))
        below = rows[-1].groups
    return Geometry(*rows)


def whole_clouds(points: Tensor) -> Rows:
    """Each cloud as one group with absolute coordinates; copies of its first point, made by dropout, are merged."""
    clouds = points.detach().contiguous().numpy()
    number, size, _ = clouds.shape
    copies = (clouds == clouds[:, :1]).all(axis=2)
    copies[:, 0] = False
    kept = ~copies
    weight = np.ones((number, size), np.float32)
    weight[:, 0] += copies.sum(axis=1)
    starts = np.zeros(number + 1, np.int64)
    np.cumsum(kept.sum(axis=1), out=starts[1:])
    source = np.flatnonzero(kept).astype(np.int32)
    return Rows(source, clouds[kept], weight[kept], starts, 0)
