"""Clouds of scenes in their files: read when they are needed, and kept in memory only where all fit.

A cloud of n points is the beginning of any larger one of the same file, so it does not depend on how many points other
scenes have, or on how many are kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from zlib import crc32

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedstill.core.dataset import ArrayDataset, Batch, Dataset, without_answers
from fedstill.core.errors import DataChangedError, InputError
from fedstill.core.streams import Streams
from fedstill.data.clouds import finite_points, sampled
from fedstill.data.layout import BoxSamples
from fedstill.data.readers.npz import array, lone_array, opened
from fedstill.data.readers.point_colours import with_table_colours
from fedstill.data.readers.raw import Array
from fedstill.data.readers.whole_scans import read_scan
from fedstill.detection.point_features import COORDINATES, FeatureName, columns_with, with_height

Floats = NDArray[np.float64]

IN_MEMORY = 512 * 2**20  # bytes of clouds of one split; more are read batch by batch
_AT_ONCE = 16  # clouds of a piece
_OF_A_MESH = 50_000  # points that are drawn on its surface


def as_numbers(held: Array, path: Path, name: str = "") -> Floats:
    """An array of a file in double precision."""
    if held.dtype.kind not in "fiu":
        raise InputError(
            f"{path}: {name} must be numbers, not {held.dtype}" if name else f"{path} does not hold numbers"
        )
    return held.astype(np.float64)


def read_points(path: Path, colour: bool = False) -> tuple[Floats, str]:
    """The points of a scene's file (points, 3), and a note where some were left out; with `colour`, (points, 6).

    The file is an array, or an archive with `points`, or VoteNet's `..._pc.npz` with `pc`, or a scan of any format.
    """
    if path.suffix == ".npz":
        with opened(path) as archive:
            loaded = array(archive, "pc" if path.name.endswith("_pc.npz") else "points", path)
    elif path.suffix == ".npy":
        loaded = lone_array(path)
    else:
        notes: list[str] = []
        return read_scan(path, _OF_A_MESH, path.name, notes, colour).astype(np.float64), "; ".join(notes)
    cloud = as_numbers(loaded, path, "points" if path.suffix == ".npz" else "")
    if cloud.ndim != 2 or cloud.shape[1] < 3:
        raise InputError(f"{path}: a cloud must be (points, 3 or more), not {cloud.shape}")
    return finite_points(with_table_colours(cloud, path) if colour else cloud[:, :3], path)


@dataclass(frozen=True)
class CloudFile:
    """One scene's file: how its points are drawn, and a checksum of them when they were first read."""

    path: Path
    name: str  # names the stream
    held: int  # points in the file
    checksum: int
    filled: int = 0  # a smaller cloud is filled up to this many points before they are shuffled
    seed: int = 0
    coloured: bool = False  # whether points have their colours beside their coordinates

    @classmethod
    def of(cls, path: Path, name: str, cloud: Floats, filled: int = 0, seed: int = 0) -> CloudFile:
        return cls(path, name, len(cloud), _checksum(cloud), filled, seed)

    def with_colours(self) -> CloudFile:
        """The same points with their colours; a file without any is refused."""
        cloud, _ = read_points(self.path, colour=True)
        if _checksum(cloud[:, :COORDINATES]) != self.checksum:
            raise DataChangedError(f"{self.path} was changed since its scenes were read: start again")
        return replace(self, checksum=_checksum(cloud), coloured=True)

    def read(self, count: int) -> NDArray[np.float32]:
        """This many points in random order; where there are fewer, some are repeated."""
        try:
            cloud, _ = read_points(self.path, self.coloured)
        except (InputError, OSError) as error:
            raise DataChangedError(f"{self.path} could be read before, and now cannot: {error}") from error
        if _checksum(cloud) != self.checksum:
            raise DataChangedError(f"{self.path} was changed since its scenes were read: start again")
        draws = Streams(self.seed).draw("scene points", self.name)
        some = sampled(cloud, max(self.filled, min(count, len(cloud))), draws, self.path)[:count]
        if len(some) < count:
            some = np.concatenate([some, cloud[draws.integers(0, len(cloud), count - len(some))]])
        return some.astype(np.float32)


def _checksum(cloud: Floats) -> int:
    return crc32(np.ascontiguousarray(cloud).data)


@dataclass(frozen=True)
class FileScenes:
    """Scenes whose clouds are read batch by batch; labels and boxes are in memory."""

    files: tuple[CloudFile, ...]
    points: int
    columns_at_hand: Mapping[str, Tensor]  # everything but the clouds
    features: tuple[FeatureName, ...] = ()  # of points

    def __len__(self) -> int:
        return len(self.files)

    def batch(self, rows: Tensor) -> Batch:
        columns = columns_with(tuple(name for name in self.features if name == "colour"))
        clouds = np.zeros((len(rows), self.points, columns), np.float32)
        for place, row in enumerate(rows.tolist()):
            clouds[place] = self.files[row].read(self.points)
        held = {name: column.index_select(0, rows) for name, column in self.columns_at_hand.items()}
        inputs = torch.from_numpy(clouds)
        return {**held, "inputs": with_height(inputs) if "height" in self.features else inputs}

    def labels(self) -> Tensor | None:
        return self.columns_at_hand.get("labels")

    def unlabelled(self) -> FileScenes:
        return replace(self, columns_at_hand=without_answers(self.columns_at_hand))

    def column(self, name: str) -> Tensor | None:
        """A whole column that is at hand."""
        return self.columns_at_hand.get(name)

    def first_points(self, count: int, rows: Tensor | None = None) -> Dataset:
        """The same scenes, or some of them, with their first points only; in memory where these fit."""
        rows = torch.arange(len(self)) if rows is None else rows
        held = {name: column.index_select(0, rows) for name, column in self.columns_at_hand.items()}
        return scene_data(tuple(self.files[row] for row in rows.tolist()), count, held, self.features)

    def pieces(self) -> Iterator[Tensor]:
        """The clouds, a few at a time."""
        for rows in torch.arange(len(self)).split(_AT_ONCE):
            yield self.batch(rows)["inputs"]

    def contents(self) -> Iterator[tuple[str, Tensor]]:
        """What stands for its content in a fingerprint."""
        yield from (("inputs", piece) for piece in self.pieces())
        yield from sorted(self.columns_at_hand.items())


def scene_data(
    files: Sequence[CloudFile],
    points: int,
    columns: Mapping[str, Tensor],
    features: tuple[FeatureName, ...] = (),
) -> Dataset:
    """Scenes with this many points each, in memory where they fit."""
    columns = {"sample_id": torch.arange(len(files)), **columns}
    lazy = FileScenes(tuple(files), points, columns, features)
    if not fits(len(files), points, columns_with(features)):
        return lazy
    return ArrayDataset(**lazy.batch(torch.arange(len(files))))


def fits(scenes: int, points: int, columns: int = COORDINATES) -> bool:
    """Whether so many clouds are kept in memory."""
    return scenes * points * columns * 4 <= IN_MEMORY


@dataclass
class FileSamples(BoxSamples):
    """A split whose clouds stay in their files; `inputs` holds none of them, only their shape."""

    files: tuple[CloudFile, ...] = field(default=())

    def dataset(self) -> Dataset:
        held = {name: column for name, column in self.columns().items() if name != "inputs"}
        return scene_data(self.files, self.inputs.shape[1], held)

    def pieces(self) -> Iterator[Tensor]:
        yield from FileScenes(self.files, self.inputs.shape[1], {}).pieces()
