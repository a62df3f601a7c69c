"""Samples of two splits that are nearly the same: an image saved anew, smaller or brighter; a cloud in another order.

Images are compared by a difference hash (which of neighbouring pixels of a 9x8 thumbnail is brighter, as in
https://www.hackerfactor.com/blog/index.php?/archives/529-Kind-of-Like-That.html), and those with nearly the same hash
by the correlation of 16x16 thumbnails, since simple images share hashes. Clouds have a digest of their
rounded points that does not depend on their order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from fedstill.data.layout import Samples

SMALLEST = 16  # side of an image that can be told from others
_BITS_APART = 12  # of 64; flat regions have bits of noise
_ALIKE = 0.998  # correlation of thumbnails
_MOST_PAIRS = 1_000_000_000  # comparisons of hashes, some seconds
_AT_ONCE = 8_000_000
_DECIMALS = 4  # of the coordinates of clouds, whose radius is 1


@dataclass(frozen=True)
class Likenesses:
    """What is kept of the samples of one split."""

    hashes: NDArray[Any]
    thumbnails: NDArray[np.float32] | None = None  # of images


def marks(split: Samples) -> Likenesses | None:
    """Of images that are large enough, and of clouds; None of other samples."""
    if split.kind == "image" and min(split.inputs.shape[2:]) >= SMALLEST:
        parts = [_of_images(piece.float().mean(dim=1, keepdim=True)) for piece in split.pieces()]
        return Likenesses(*(np.concatenate(some) for some in zip(*parts, strict=True)))
    if split.kind == "cloud":
        return Likenesses(np.array([_of_cloud(cloud) for piece in split.pieces() for cloud in piece]))
    return None


def pairs_alike(one: Likenesses, other: Likenesses) -> Iterator[tuple[int, int]]:
    """For each sample of the second split that has a likeness in the first: both rows, the first's first."""
    if other.thumbnails is None or one.thumbnails is None:
        place = {held: row for row, held in reversed(list(enumerate(one.hashes.tolist())))}
        yield from ((place[held], row) for row, held in enumerate(other.hashes.tolist()) if held in place)
        return
    step = max(1, _AT_ONCE // len(one.hashes))
    for start in range(0, len(other.hashes), step):
        apart = np.bitwise_count(other.hashes[start : start + step, None] ^ one.hashes)
        for row, candidates in enumerate(apart <= _BITS_APART, start=start):
            rows = np.flatnonzero(candidates)
            alike = rows[one.thumbnails[rows] @ other.thumbnails[row] >= _ALIKE]
            if len(alike):
                yield int(alike[0]), row


def too_many(one: Likenesses, other: Likenesses) -> bool:
    """Whether comparing all images of two splits would take too long."""
    return one.thumbnails is not None and len(one.hashes) * len(other.hashes) > _MOST_PAIRS


def _of_images(grey: Tensor) -> tuple[NDArray[np.uint64], NDArray[np.float32]]:
    small = F.adaptive_avg_pool2d(grey, (8, 9))
    bits = (small[:, 0, :, 1:] > small[:, 0, :, :-1]).flatten(1).numpy()
    hashes = np.packbits(bits, axis=1).view(np.uint64)[:, 0]
    thumbnail = F.adaptive_avg_pool2d(grey, (16, 16)).flatten(1)
    return hashes, F.normalize(thumbnail - thumbnail.mean(dim=1, keepdim=True), dim=1).numpy()


def _of_cloud(cloud: Tensor) -> bytes:
    points = torch.round(cloud.double(), decimals=_DECIMALS).numpy() + 0.0  # no negative zeros
    ordered = points[np.lexsort(points.T)]
    return blake2b(np.ascontiguousarray(ordered).data, digest_size=16).digest()
