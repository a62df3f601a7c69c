"""Augmentation of training batches, drawn anew for every batch. Test data is never augmented.

A custom augmentation is a settings class with a `__call__` and a registered name:

    @augmentations.register("jitter")
    class Jitter(Augmentation):
        '''One sentence for the lists.'''

        width: float = 0.01

        def __call__(self, batch, generator): ...
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor

from fedstill.core.dataset import Batch
from fedstill.core.errors import InputError
from fedstill.core.numbers import listed
from fedstill.core.registry import Registry
from fedstill.core.settings import Settings


class Augmentation(Settings):
    """A named augmentation: its settings, with a call that changes a batch."""

    kinds: ClassVar[frozenset[str]] = frozenset()  # of data that it is for; empty: any

    def check(self, kind: str, shape: tuple[int, ...]) -> None:
        """Refuse data of a kind, with samples of a shape, that it cannot change."""
        if self.kinds and kind not in self.kinds:
            able = [name for name in augmentations if kind in augmentations[name].kinds]
            own, fitting = augmentations.name_of(type(self)), " or ".join([*able, "none"])
            raise InputError(
                f"the augmentation {own} is for {listed([f'{one}s' for one in sorted(self.kinds)])},"
                f" and this data holds {kind}s: choose augmentation={fitting}"
            )

    @abstractmethod
    def __call__(self, batch: Batch, generator: np.random.Generator) -> Batch:
        """The augmented batch; the input batch is not modified, and the generator is the only source of randomness."""


augmentations: Registry[type[Augmentation]] = Registry("augmentation")


@augmentations.register("none")
class NoAugmentation(Augmentation):
    """No augmentation."""

    def __call__(self, batch: Batch, generator: np.random.Generator) -> Batch:
        return batch


@augmentations.register("points")
class PointAugmentation(Augmentation):
    """Point-cloud augmentation: random point dropout, scaling and shift per cloud; no rotation.

    Per cloud: a dropout ratio U[0, `dropout`], and each point is dropped with that probability, that is, replaced by
    point 0, so that clouds keep their size; then one scale U[`scale_low`, `scale_high`] for all three axes; then a
    shift U[-`shift`, `shift`] along each axis.
    """

    kinds = frozenset({"cloud"})

    dropout: float = Field(0.875, ge=0, le=1, description="largest share of points to drop")
    scale_low: float = Field(0.8, gt=0, description="smallest scale")
    scale_high: float = Field(1.25, gt=0, description="largest scale")
    shift: float = Field(0.1, ge=0, description="largest shift along each axis")

    @model_validator(mode="after")
    def _ordered(self) -> PointAugmentation:
        if self.scale_low > self.scale_high:
            raise ValueError(f"scale_low ({self.scale_low}) must not be larger than scale_high ({self.scale_high})")
        return self

    def __call__(self, batch: Batch, generator: np.random.Generator) -> Batch:
        clouds = batch["inputs"]
        size, points, _ = clouds.shape
        # The draws and their order define the meaning of a stream: ratios, points, scales, shifts.
        ratio = generator.random((size, 1), dtype=np.float32) * np.float32(self.dropout)
        dropped = generator.random((size, points), dtype=np.float32) < ratio
        scale = generator.uniform(self.scale_low, self.scale_high, (size, 1, 1)).astype(np.float32)
        shift = generator.uniform(-self.shift, self.shift, (size, 1, 3)).astype(np.float32)
        device = clouds.device
        kept = torch.where(torch.from_numpy(dropped).unsqueeze(2).to(device), clouds[:, :1], clouds)
        moved = kept.mul_(torch.from_numpy(scale).to(device)).add_(torch.from_numpy(shift).to(device))
        return {**batch, "inputs": moved}


@augmentations.register("images")
class ImageAugmentation(Augmentation):
    """Image augmentation: random crop of the padded image and random horizontal flip, per image.

    Per image: padded by `padding` pixels on all four sides and cropped to its own size at a place that is uniform over
    all positions; then mirrored left to right with probability 1/2. Switch `flip` off where a mirrored sample is of
    another class or of none: digits, letters, left and right organs. All channels are treated alike.
    """

    kinds = frozenset({"image"})

    flip: bool = Field(True, description="mirror half of the images left to right; off for digits and letters")
    padding: int | None = Field(
        None, ge=0, description="pixels added on every side before the crop; unset: an eighth of the shorter side"
    )
    fill: float = Field(-1.0, description="value of the padding; -1 is black in 8-bit images, as models read them")

    def check(self, kind: str, shape: tuple[int, ...]) -> None:
        super().check(kind, shape)
        if self.pixels(shape) >= min(shape[1:]):
            raise InputError(
                f"augmentation.padding is {self.padding}, and images of {shape[1]}x{shape[2]} pixels could be cropped"
                f" to padding alone: choose at most {min(shape[1:]) - 1}"
            )

    def pixels(self, shape: tuple[int, ...]) -> int:
        """The padding of images of shape (channels, height, width).

        >>> [ImageAugmentation().pixels((3, side, side)) for side in (8, 28, 32, 224)]
        [1, 4, 4, 28]
        """
        return (min(shape[1:]) + 4) // 8 if self.padding is None else self.padding

    def __call__(self, batch: Batch, generator: np.random.Generator) -> Batch:
        images = batch["inputs"]
        size, pixels = len(images), self.pixels(tuple(images.shape[1:]))
        # The draws and their order define the meaning of a stream, whether `flip` is on or off: mirrors, places.
        mirrors = generator.random(size) < 0.5
        places = generator.integers(0, 2 * pixels + 1, (size, 2))
        mirrored = torch.from_numpy(mirrors & self.flip)
        return {**batch, "inputs": cropped(images, mirrored, torch.from_numpy(places), pixels, self.fill)}


def cropped(images: Tensor, mirrored: Tensor, places: Tensor, padding: int, fill: float) -> Tensor:
    """Images (n, channels, height, width) after padding, a crop at `places` (n, 2; down, right) and some mirrored (n,).

    One gather does both: its index says which pixel of the padded image each pixel of the result is.

    >>> image = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]])
    >>> cropped(image, torch.tensor([False]), torch.tensor([[2, 0]]), 1, 0.0).tolist()
    [[[[0.0, 3.0], [0.0, 0.0]]]]
    >>> cropped(image, torch.tensor([True]), torch.tensor([[1, 1]]), 1, 0.0).tolist()
    [[[[2.0, 1.0], [4.0, 3.0]]]]
    """
    size, channels, height, width = images.shape
    columns = torch.arange(width)
    down = torch.arange(height) + places[:, :1]
    right = torch.where(mirrored.unsqueeze(1), columns.flip(0), columns) + places[:, 1:]
    index = (down.unsqueeze(2) * (width + 2 * padding) + right.unsqueeze(1)).reshape(size, 1, -1).to(images.device)
    padded = F.pad(images, [padding] * 4, value=fill).flatten(2)
    return padded.gather(2, index.expand(-1, channels, -1)).reshape(images.shape)
