"""A pool of patches of one shared cloud, a scanned object or a scene: the point-cloud counterpart of image patches.

This is our extension: the single-image paper covers images only. A patch is a point with its nearest neighbours, from
as few as a sample has points to all of them, so that it shows anything from a detail to the whole, like crops of an
image. It is rotated about the vertical axis, stretched slightly along each axis, blurred, and normalised like all
clouds.
"""

from __future__ import annotations

from functools import cached_property
from hashlib import sha256
from math import pi
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedstill.core.dataset import Batch
from fedstill.core.errors import InputError
from fedstill.shared_image.patch_numbers import Floats, Integers, log_uniform, sequence, sine_and_cosine, uniforms
from fedstill.shared_image.patch_pool import PatchPool
from fedstill.shared_image.patch_settings import PatchSettings

_VERSION = "cloud patches 1"
_FIELDS = {"count", "seed", "cloud_scale", "cloud_noise"}


class CloudPatches:
    """Patches of a cloud (points, 3) as a data set of clouds without labels.

    >>> cloud = np.random.default_rng(0).normal(size=(500, 3))
    >>> pool = CloudPatches(cloud, (64, 3), PatchSettings(count=20))
    >>> inputs = pool.batch(torch.tensor([17, 3]))["inputs"]
    >>> tuple(inputs.shape), round(inputs.norm(dim=2).max().item(), 6)
    ((2, 64, 3), 1.0)
    """

    def __init__(
        self, cloud: NDArray[np.floating], shape: tuple[int, ...], settings: PatchSettings | None = None
    ) -> None:
        self.settings = settings or PatchSettings()
        if cloud.ndim != 2 or cloud.shape[1] != 3 or not np.isfinite(cloud).all():
            raise InputError(f"a cloud comes as finite numbers of the shape (points, 3), not {cloud.shape}")
        if len(shape) != 2 or shape[0] < 2 or shape[1] != 3:
            raise InputError(f"patches of clouds are made for samples of shape (points, 3), not {shape}")
        if len(cloud) < shape[0]:
            raise InputError(f"a cloud of {len(cloud):,} points is too small for patches of {shape[0]:,}")
        self.shape = shape
        self.cloud = torch.from_numpy(np.require(cloud, np.float32, ["C", "W"]))
        self._pool = PatchPool(self.settings.count, shape, torch.float32, self._make)

    def __len__(self) -> int:
        return self.settings.count

    def batch(self, rows: Tensor) -> Batch:
        return {"inputs": self._pool.take(rows), "sample_id": rows}

    def labels(self) -> None:
        return None

    def unlabelled(self) -> CloudPatches:
        return self

    @cached_property
    def source_digest(self) -> str:
        """A SHA-256 of the cloud."""
        digest = sha256(f"cloud {tuple(self.cloud.shape)}".encode())
        digest.update(self.cloud.numpy().astype("<f4").data)
        return digest.hexdigest()

    def fingerprint(self) -> str:
        """A SHA-256 over cloud, settings and shape: if both sides agree, indices refer to the same patches."""
        settings = self.settings.model_dump_json(include=_FIELDS)
        return sha256(f"{_VERSION} {self.source_digest} {self.shape} {settings}".encode()).hexdigest()

    def _make(self, rows: Tensor) -> Tensor:
        """Makes patches one by one, because each has its own number of neighbours."""
        points, turns, scales = self.shape[0], self._turns(rows), self._scales(rows)
        made = np.empty((len(rows), *self.shape), np.float32)
        for place, (row, centre, size) in enumerate(zip(rows.tolist(), *self.places(rows), strict=True)):
            drawn = sequence(self.settings.seed, "cloud patch points", row, size + 12 * points)
            # In random order, so that the first points of a patch are a fair sample of it.
            chosen = nearest(self._points, centre, size)[np.argsort(drawn[:size], kind="stable")[:points]]
            x, y, z = unit_size(self._points[chosen]).T
            (sine, cosine), scale = turns[place], scales[place]
            patch = np.stack([cosine * x - sine * y, sine * x + cosine * y, z], axis=1) * scale
            # The sum of four uniform numbers is nearly normal, without logarithms; its variance is 4/12.
            noise = drawn[size:].reshape(4, points, 3)
            bell = (noise[0] + noise[1] + noise[2] + noise[3] - 2.0) * np.sqrt(3.0)
            made[place] = unit_size(patch + self.settings.cloud_noise * bell)
        return torch.from_numpy(made)

    def places(self, rows: Tensor) -> tuple[list[int], list[int]]:
        """The centre points of these patches, and the number of neighbours they are chosen from."""
        drawn, whole = self._draw(rows), len(self.cloud)
        sizes = np.minimum(log_uniform(drawn[:, 1], self.shape[0], whole + 1), whole)
        return (drawn[:, 0] * whole).astype(np.int64).tolist(), sizes.astype(np.int64).tolist()

    def _turns(self, rows: Tensor) -> Floats:
        return np.stack(sine_and_cosine((2.0 * self._draw(rows)[:, 2] - 1.0) * pi), axis=1)

    def _scales(self, rows: Tensor) -> Floats:
        low, high = self.settings.cloud_scale
        return low + self._draw(rows)[:, 3:6] * (high - low)

    def _draw(self, rows: Tensor) -> Floats:
        """Centre, size, rotation and three stretch factors; two numbers are unused."""
        return uniforms(self.settings.seed, "cloud patches", rows.numpy(), 8)

    @cached_property
    def _points(self) -> Floats:
        return self.cloud.numpy().astype(np.float64)

    def __getstate__(self) -> dict[str, Any]:
        return {"cloud": self.cloud, "shape": self.shape, "settings": self.settings}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["cloud"].numpy(), state["shape"], state["settings"])  # type: ignore[misc]


def nearest(points: Floats, centre: int, count: int) -> Integers:
    """The points nearest to one of them, itself included, in the order of the cloud; ties go to the lowest number.

    >>> nearest(np.array([[0.0, 0, 0], [2, 0, 0], [1, 0, 0], [0, 1, 0]]), 0, 2).tolist()
    [0, 2]
    """
    x, y, z = (points - points[centre]).T
    distance = x * x + y * y + z * z
    farthest = np.partition(distance, count - 1)[count - 1]
    inside, edge = np.flatnonzero(distance < farthest), np.flatnonzero(distance == farthest)
    return np.sort(np.concatenate([inside, edge[: count - len(inside)]]))


def unit_size(cloud: Floats) -> Floats:
    """`clouds.normalise` with sequential sums, so that every machine sums in the same order."""
    centred = cloud - np.add.accumulate(cloud, axis=0)[-1] / len(cloud)
    x, y, z = centred.T
    size = np.sqrt((x * x + y * y + z * z).max())
    return np.asarray(centred / size) if size > 0 else centred
