"""A pool of patches of one shared image: a proxy data set of which only indices are sent.

"Federated Learning with a Single Shared Image", https://arxiv.org/abs/2406.12658, section 3.1. Everyone with the image
and the settings has the pool: patch i depends only on the image's pixels, the settings and i, not on which other
patches are made or on the machine. See `patch_geometry` and `patch_kernel` for details.
"""

from __future__ import annotations

from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedstill.core.dataset import ArrayDataset, Batch
from fedstill.core.errors import InputError
from fedstill.data.bundle import Kind
from fedstill.shared_image.cloud_patches import CloudPatches
from fedstill.shared_image.patch_geometry import Placement, Pyramid, compose, place, pyramid, resized
from fedstill.shared_image.patch_pool import PatchPool
from fedstill.shared_image.patch_settings import PatchSettings
from fedstill.shared_image.patch_sources import cloud_source, is_cloud_source, patch_source

__all__ = ["CloudPatches", "PatchSettings", "Patches", "make_patches", "patch_source"]

_VERSION = "image patches 1"  # version of the pipeline: pools made in another way have another fingerprint
_FIELDS = {"count", "seed", "area", "ratio", "rotation", "shear", "flip", "jitter", "jitter_probability"}


class Patches:
    """Patches of an image as a data set without labels; a patch is computed when first requested, and cached.

    >>> image = np.arange(64 * 64 * 3, dtype=np.uint8).reshape(64, 64, 3)
    >>> pool = Patches(image, (3, 8, 8), PatchSettings(count=20))
    >>> batch = pool.batch(torch.tensor([17, 3]))
    >>> tuple(batch["inputs"].shape), batch["sample_id"].tolist(), pool.labels()
    ((2, 3, 8, 8), [17, 3], None)
    """

    def __init__(self, image: NDArray[np.uint8], shape: tuple[int, ...], settings: PatchSettings | None = None) -> None:
        self.settings = settings or PatchSettings()
        if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8:
            raise InputError(
                f"an image comes as bytes of the shape (height, width, 3), not {image.dtype} {image.shape}"
            )
        if len(shape) != 3 or shape[0] not in (1, 3) or min(shape[1:]) < 1:
            raise InputError(f"patches are made for images of one or three channels, not for samples of shape {shape}")
        height, width = image.shape[:2]
        if min(height, width) // 2 < max(shape[1:]):
            raise InputError(
                f"an image of {width} x {height} pixels is too small for patches of {shape[2]} x {shape[1]}:"
                f" its short side must be at least {2 * max(shape[1:])}"
            )
        self.shape = shape
        # A tensor, because engines share tensors with their workers.
        self.image = torch.from_numpy(np.require(image, requirements=["C", "W"]))
        self._pool = PatchPool(self.settings.count, shape, torch.uint8, self._make)

    def __len__(self) -> int:
        return self.settings.count

    def batch(self, rows: Tensor) -> Batch:
        # The same path as training data, so that pixels are scaled in one place only.
        return ArrayDataset(inputs=self.pixels(rows), sample_id=rows).batch(torch.arange(len(rows)))

    def labels(self) -> None:
        return None

    def unlabelled(self) -> Patches:
        return self

    def pixels(self, rows: Tensor) -> Tensor:
        """Patches as stored: 8 bits, (rows, channels, height, width)."""
        return self._pool.take(rows)

    def place(self, rows: Tensor) -> Placement:
        """The positions and colour parameters of these patches."""
        return place(self.settings, self.image.shape[0], self.image.shape[1], rows.numpy())

    @cached_property
    def source_digest(self) -> str:
        """A SHA-256 of the decoded pixels, since two decoders may read one file differently."""
        digest = sha256(f"image {tuple(self.image.shape)}".encode())
        digest.update(self.image.numpy().data)
        return digest.hexdigest()

    def fingerprint(self) -> str:
        """A SHA-256 over image, settings and shape: if both sides agree, indices refer to the same patches."""
        settings = self.settings.model_dump_json(include=_FIELDS)
        return sha256(f"{_VERSION} {self.source_digest} {self.shape} {settings}".encode()).hexdigest()

    @cached_property
    def _levels(self) -> Pyramid:
        high, wide = self.image.shape[:2]
        return pyramid(self.image.numpy(), min(high, wide) / 2 / resized(min(self.shape[1:])))

    def _make(self, rows: Tensor) -> Tensor:
        from fedstill.shared_image.patch_kernel import render

        placed, levels = self.place(rows), self._levels
        height, width = self.shape[1:]
        maps = compose(placed, height, width)
        level = levels.level(maps.scale)
        shrunk = np.exp2(level)[:, None]  # a power of two: exact
        made = np.empty((len(rows), *self.shape), np.uint8)
        render(
            levels.pixels,
            np.stack([levels.starts, levels.heights, levels.widths], axis=1)[level],
            maps.turn,
            maps.middle / shrunk,
            maps.scale / shrunk,
            np.array([resized(width) / 2, resized(height) / 2]),
            placed.coloured,
            placed.colours,
            made,
        )
        return torch.from_numpy(made)

    def __getstate__(self) -> dict[str, Any]:
        return {"image": self.image, "shape": self.shape, "settings": self.settings}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["image"].numpy(), state["shape"], state["settings"])  # type: ignore[misc]


def make_patches(
    source: str,
    shape: tuple[int, ...],
    kind: Kind,
    settings: PatchSettings | None = None,
    data_root: Path | None = None,
) -> Patches | CloudPatches:
    """The pool of a source by name (see `patch_sources`), for samples of this kind and shape.

    >>> len(make_patches("noise:64x64", (1, 8, 8), "image", PatchSettings(count=5)))
    5
    """
    if kind == "scene":
        raise InputError(f"patches of {source} have no boxes and are no rooms: scenes need another proxy")
    if is_cloud_source(source) != (kind == "cloud"):
        wanted = "clouds, such as heads:0 or cloud:FILE" if kind == "cloud" else "images, such as china or image:FILE"
        raise InputError(f"{source} cannot be cut into patches for {kind}s: these need one of the sources of {wanted}")
    if kind == "cloud":
        return CloudPatches(cloud_source(source, data_root), shape, settings)
    return Patches(patch_source(source, data_root), shape, settings)
