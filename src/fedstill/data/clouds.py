"""Normalisation of point clouds: centred on their mean, with the farthest point at distance 1."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedstill.core.dataset import ArrayDataset, Batch, Dataset, Subset, column
from fedstill.core.errors import InputError
from fedstill.core.streams import Streams

Floats = TypeVar("Floats", NDArray[np.float32], NDArray[np.float64])

_AT_ONCE = 256  # clouds normalised at a time: sums are in double precision, and memory is bounded

SPARSE = 8  # a cloud with less than one such part of the points that are needed is refused
FEWEST_POINTS = 64  # a scene with fewer points is rejected
_MOST_NOT_FINITE = 0.05  # share of a scene's points; more of them mean that the file is damaged


def normalise(clouds: Floats) -> Floats:
    """Centre clouds (..., points, 3) on their mean and divide them by their largest norm, in place.

    Numbers behind the coordinates, such as normals, stay as they are. A cloud whose points all coincide has no size: it
    becomes zeros, which `fedstill data check` reports.

    >>> normalise(np.array([[[0.0, 0.0, 0.0], [4.0, 0.0, 0.0]]])).tolist()
    [[[-1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]]
    """
    pile = clouds.reshape(-1, *clouds.shape[-2:])
    with np.errstate(invalid="ignore", over="ignore"):  # values that are not finite stay so, and are found later
        for start in range(0, len(pile), _AT_ONCE):
            some = pile[start : start + _AT_ONCE, :, :3]
            centred = some - some.mean(axis=1, keepdims=True, dtype=np.float64)
            size = np.linalg.norm(centred, axis=2).max(axis=1)[:, None, None]
            some[...] = centred / np.where(size > 0, size, 1.0)
    return pile.reshape(clouds.shape)


def first_points(data: Dataset, count: int, anew: bool = True) -> Dataset:
    """The same clouds with their first points only, normalised again if `anew`.

    So a cloud of n points does not depend on how many were stored. (Scenes are not normalised: their boxes are in
    metres.)
    """
    inner, rows = (data.data, (data.rows,)) if isinstance(data, Subset) else (data, ())
    if not anew and (cut := getattr(inner, "first_points", None)) is not None:  # it reads no more than it needs
        found: Dataset = cut(count, *rows)
        return found
    if not isinstance(data, ArrayDataset):
        return _FirstPoints(data, count, anew)
    return ArrayDataset(**{**data.columns, "inputs": _cut(data.columns["inputs"], count, anew)})


def _cut(inputs: Tensor, count: int, anew: bool) -> Tensor:
    some = inputs[:, :count].to(torch.float32, copy=True)
    return torch.from_numpy(normalise(some.numpy())) if anew else some.contiguous()


class _FirstPoints:
    """First points of data that is not held in memory: batches are cut when they are made."""

    def __init__(self, data: Dataset, count: int, anew: bool) -> None:
        self.data, self.count, self.anew = data, count, anew

    def __len__(self) -> int:
        return len(self.data)

    def batch(self, rows: Tensor) -> Batch:
        batch = self.data.batch(rows)
        return {**batch, "inputs": _cut(batch["inputs"], self.count, self.anew)}

    def labels(self) -> Tensor | None:
        return self.data.labels()

    def unlabelled(self) -> _FirstPoints:
        return _FirstPoints(self.data.unlabelled(), self.count, self.anew)


_EXAMINED = 256  # clouds that are looked at for an order of their points
_ORDERED = 4.0  # mean square of differences between halves, in standard errors; 1 where the order is random


def has_order(data: Dataset) -> bool:
    """Whether the points of clouds are stored in an order, so that the first of them are no fair sample.

    The first half of each cloud is compared with the second, by the means of the coordinates and of the squared radius.

    >>> cloud = torch.rand(8, 100, 3, generator=torch.Generator().manual_seed(0))
    >>> by_height = cloud.gather(1, cloud[..., 2:].argsort(dim=1).expand(-1, -1, 3))
    >>> has_order(ArrayDataset(inputs=cloud)), has_order(ArrayDataset(inputs=by_height))
    (False, True)
    """
    rows = torch.arange(min(len(data), _EXAMINED))
    clouds = data.batch(rows)["inputs"].double()
    half = clouds.shape[1] // 2
    if not len(rows) or half < 2:
        return False
    moments = torch.cat([clouds, clouds.square().sum(dim=2, keepdim=True)], dim=2)
    apart = moments[:, :half].mean(dim=1) - moments[:, half : 2 * half].mean(dim=1)
    error = moments.std(dim=1).clamp(min=1e-12) * (2 / half) ** 0.5
    return float((apart / error).square().mean()) > _ORDERED


def drawn_points(data: Dataset, count: int) -> Dataset:
    """The same clouds with so many of their points, drawn from a stream for each sample, normalised again.

    Labels of points are drawn with them. Where more are asked for than there are, every point is there, and those drawn
    first once more often than the others.
    """
    return DrawnPoints(data, count) if not isinstance(data, ArrayDataset) else _drawn_array(data, count)


def _drawn_array(data: ArrayDataset, count: int) -> ArrayDataset:
    columns = _drawn(data.columns, count)
    return ArrayDataset(**{**columns, "inputs": _cut(columns["inputs"], count, anew=True)})


def _drawn(batch: Batch, count: int) -> dict[str, Tensor]:
    stored = batch["inputs"].shape[1]
    chosen = torch.stack(
        [
            torch.from_numpy(np.resize(Streams(0).draw("points", sample).permutation(stored), count))
            for sample in batch["sample_id"].tolist()
        ]
        or [torch.zeros(count, dtype=torch.int64)]
    )[: len(batch["inputs"])]
    drawn = {**batch, "inputs": batch["inputs"].gather(1, chosen.unsqueeze(2).expand(-1, -1, batch["inputs"].shape[2]))}
    labels = batch.get("labels")
    if labels is not None and labels.ndim == 2 and labels.shape[1] == stored:
        drawn["labels"] = labels.gather(1, chosen)
    return drawn


class DrawnPoints:
    """Drawn points of data that is not held in memory: batches are drawn from when they are made."""

    def __init__(self, data: Dataset, count: int) -> None:
        self.data, self.count = data, count

    def __len__(self) -> int:
        return len(self.data)

    def batch(self, rows: Tensor) -> Batch:
        batch = _drawn(self.data.batch(rows), self.count)
        return {**batch, "inputs": _cut(batch["inputs"], self.count, anew=True)}

    def labels(self) -> Tensor | None:
        labels = self.data.labels()
        if labels is None or labels.ndim == 1:
            return labels
        return torch.cat([self.batch(rows)["labels"] for rows in torch.arange(len(self)).split(_AT_ONCE)])

    def column(self, name: str) -> Tensor | None:
        """A whole column that the drawing leaves as it is."""
        return None if name == "inputs" else self.labels() if name == "labels" else column(self.data, name)

    def unlabelled(self) -> DrawnPoints:
        return DrawnPoints(self.data.unlabelled(), self.count)


def sampled(cloud: Floats, points: int, rng: np.random.Generator, where: Path) -> Floats:
    """This many points in random order; a cloud with fewer points is used completely, with some points repeated."""
    if len(cloud) < FEWEST_POINTS:
        raise InputError(f"{where} has {len(cloud)} points: a scene needs at least {FEWEST_POINTS}")
    chosen = rng.permutation(len(cloud))[:points]
    if len(chosen) < points:
        chosen = rng.permutation(np.concatenate([chosen, rng.integers(0, len(cloud), points - len(chosen))]))
    return cloud[chosen]


def finite_points(cloud: Floats, where: Path) -> tuple[Floats, str]:
    """The points with finite coordinates, and a note where others were left out; many of these are refused.

    >>> cloud, note = finite_points(np.array([[0.0, 0.0, np.nan], *[[1.0, 2.0, 3.0]] * 99]), Path("room.npz"))
    >>> len(cloud), note
    (99, 'room.npz: 1 of 100 points left out, which has coordinates that are not finite')
    """
    finite = np.isfinite(cloud).all(axis=1)
    lost = int((~finite).sum())
    if not lost:
        return cloud, ""
    if lost > _MOST_NOT_FINITE * len(cloud):
        raise InputError(
            f"{where} has points that are not finite numbers, {lost:,} of {len(cloud):,}: remove them, or export the"
            " scene again"
        )
    have = "has" if lost == 1 else "have"
    return cloud[finite], (
        f"{where.name}: {lost:,} of {len(cloud):,} points left out, which {have} coordinates that are not finite"
    )
