"""Augmentation of images, a batch at a time: affine maps, padded crop, flip, colour and cutout."""

from __future__ import annotations

from math import pi

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedstill.core.dataset import Batch
from fedstill.core.errors import InputError
from fedstill.data.augmentation import Augmentation, augmentations

_GREY = (0.299, 0.587, 0.114)  # ITU-R 601


@augmentations.register("images")
class ImageAugmentation(Augmentation):
    """Image augmentation: random crop of the padded image and random horizontal flip, per image; more if set.

    Per image, in this order: turned and zoomed about its centre (`rotate`, `zoom`); padded by `padding` pixels on all
    four sides and cropped to its own size at a place that is uniform over all positions; mirrored left to right with
    probability 1/2; brightness, contrast and saturation multiplied by factors U[1 - `colour`, 1 + `colour`]; a square
    of a random place filled (`cutout`). Switch `flip` off where a mirrored sample is of another class or of none:
    digits, letters, left and right organs.
    """

    kinds = frozenset({"image"})

    flip: bool = Field(True, description="mirror half of the images left to right; off for digits and letters")
    padding: int | None = Field(
        None, ge=0, description="pixels added on every side before the crop; unset: an eighth of the shorter side"
    )
    fill: float = Field(-1.0, description="value of the padding; -1 is black in 8-bit images, as models read them")
    rotate: float = Field(0.0, ge=0, le=180, description="largest rotation in degrees, to either side")
    zoom: float = Field(0.0, ge=0, lt=1, description="largest change of scale: factors of 1 - zoom to 1 + zoom")
    colour: float = Field(
        0.0, ge=0, le=1, description="largest change of brightness, contrast and saturation, as a share"
    )
    cutout: float = Field(0.0, ge=0, le=1, description="side of a filled square, as a share of the shorter side")

    added_later = frozenset({"rotate", "zoom", "colour", "cutout"})

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
        # The draws and their order define the meaning of a stream, whether `flip` is on or off: mirrors, places; then
        # turns and zooms, factors of colour, centres of squares, each only where it is on.
        mirrors = generator.random(size) < 0.5
        places = generator.integers(0, 2 * pixels + 1, (size, 2))
        if self.rotate or self.zoom:
            drawn = generator.uniform(-1, 1, (size, 2)).astype(np.float32)
            angles, scales = drawn[:, 0] * np.float32(self.rotate * pi / 180), 1 + drawn[:, 1] * np.float32(self.zoom)
            images = turned(images, torch.from_numpy(angles), torch.from_numpy(scales), self.fill)
        mirrored = torch.from_numpy(mirrors & self.flip)
        images = cropped(images, mirrored, torch.from_numpy(places), pixels, self.fill)
        if self.colour:
            factors = 1 + generator.uniform(-self.colour, self.colour, (3, size)).astype(np.float32)
            images = coloured(images, *torch.from_numpy(factors))
        if self.cutout:
            side = max(1, round(self.cutout * min(images.shape[2:])))
            centres = generator.random((size, 2), dtype=np.float32)
            images = cut_out(images, torch.from_numpy(centres), side, self.fill)
        return {**batch, "inputs": images}


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


def turned(images: Tensor, angles: Tensor, scales: Tensor, fill: float) -> Tensor:
    """Images turned counter-clockwise by angles (radians) and scaled about their centres, bilinear, outside filled.

    >>> image = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]])
    >>> turned(image, torch.tensor([torch.pi / 2]), torch.ones(1), 0.0).round().tolist()
    [[[[2.0, 4.0], [1.0, 3.0]]]]
    """
    height, width = images.shape[2:]
    cos, sin = angles.cos() / scales, angles.sin() / scales
    zero = torch.zeros_like(cos)
    # Rows of the map from a place in the result to one in the image, in units of half a side.
    maps = torch.stack(
        [
            torch.stack([cos, -sin * (height / width), zero], dim=1),
            torch.stack([sin * (width / height), cos, zero], dim=1),
        ],
        dim=1,
    ).to(images.device)
    grid = F.affine_grid(maps, list(images.shape), align_corners=False)
    return F.grid_sample(images - fill, grid, mode="bilinear", padding_mode="zeros", align_corners=False) + fill


def coloured(images: Tensor, brightness: Tensor, contrast: Tensor, saturation: Tensor) -> Tensor:
    """Images on the scale -1..1 with brightness, then contrast, then saturation multiplied; kept within the scale.

    >>> image = torch.tensor([[[[-1.0, 0.0]]]])  # 0 and 0.5 on the scale 0..1
    >>> coloured(image, torch.tensor([1.5]), torch.ones(1), torch.ones(1)).tolist()
    [[[[-1.0, 0.5]]]]
    """
    bright, contrasted, saturated = (
        factor.view(-1, 1, 1, 1).to(images.device) for factor in (brightness, contrast, saturation)
    )
    shown = ((images + 1) / 2 * bright).clamp(0, 1)
    middle = _grey(shown).mean(dim=(2, 3), keepdim=True)
    shown = (middle + (shown - middle) * contrasted).clamp(0, 1)
    grey = _grey(shown)
    return (grey + (shown - grey) * saturated).clamp(0, 1) * 2 - 1


def _grey(images: Tensor) -> Tensor:
    """(n, 1, height, width); of images without three colours, the mean of their channels."""
    if images.shape[1] != len(_GREY):
        return images.mean(dim=1, keepdim=True)
    return (images * images.new_tensor(_GREY).view(1, -1, 1, 1)).sum(dim=1, keepdim=True)


def cut_out(images: Tensor, centres: Tensor, side: int, fill: float) -> Tensor:
    """Images with a filled square about a centre (n, 2; shares of height and width); at a border it is cut off.

    >>> cut_out(torch.ones(1, 1, 3, 3), torch.tensor([[0.5, 0.0]]), 1, 0.0).tolist()
    [[[[1.0, 1.0, 1.0], [0.0, 1.0, 1.0], [1.0, 1.0, 1.0]]]]
    """
    height, width = images.shape[2:]
    limits = torch.tensor([height, width])
    first = (centres * limits).floor().long() - (side - 1) // 2
    rows, columns = torch.arange(height), torch.arange(width)
    inside = [
        (place >= start) & (place < start + side)
        for place, start in ((rows.unsqueeze(0), first[:, :1]), (columns.unsqueeze(0), first[:, 1:]))
    ]
    square = (inside[0].unsqueeze(2) & inside[1].unsqueeze(1)).unsqueeze(1).to(images.device)
    return images.masked_fill(square, fill)
