"""The geometry and colour parameters of image patches: everything except their pixels.

The published pipeline, in its order: a crop of half the short side; in it a crop of random area and aspect ratio,
resized to sqrt(2) times the patch; rotation and shear about its centre; a centre crop; a flip; colours. All steps
except the colours are affine, so they are composed into one map from a patch's pixels to the image, which is then
sampled once instead of twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, isqrt, pi

import numpy as np
from numpy.typing import NDArray

from fedstill.shared_image.patch_numbers import Floats, Integers, log_uniform, sine_and_cosine, uniforms
from fedstill.shared_image.patch_settings import PatchSettings

# The use of each of a patch's 32 random numbers. The order defines the meaning of a seed.
_ROW, _COLUMN = 0, 1
_AREAS, _RATIOS = slice(2, 12), slice(12, 22)
_TOP, _LEFT, _TURN, _SHEAR, _FLIP, _COLOURED = 22, 23, 24, 25, 26, 27
_COLOURS = slice(28, 32)
_NUMBERS = 32


@dataclass(frozen=True)
class Placement:
    """Parameters of patches by number: boxes in the image (pixels, edges), rotation, shear, flip and colours."""

    left: Floats
    top: Floats
    width: Floats
    height: Floats
    angle: Floats  # radians
    slope: Floats  # the tangent of the shear
    mirror: Floats  # -1 where mirrored, else 1
    coloured: NDArray[np.bool_]
    colours: Floats  # (patches, 4): factors of brightness, contrast and saturation; the shift of the hue in turns


def resized(length: int) -> int:
    """sqrt(2) times a length, rounded up: the size at which the centre crop is filled after any rotation.

    >>> resized(32), resized(28)
    (46, 40)
    """
    return isqrt(2 * length * length - 1) + 1


def place(settings: PatchSettings, height: int, width: int, rows: Integers) -> Placement:
    """The patches of these numbers, in an image of height x width pixels."""
    drawn = uniforms(settings.seed, "patches", rows, _NUMBERS)
    side = min(height, width) // 2
    row, column = np.floor(drawn[:, _ROW] * (height - side + 1)), np.floor(drawn[:, _COLUMN] * (width - side + 1))
    wide, high = _second_crop(settings, side, drawn[:, _AREAS], drawn[:, _RATIOS])
    sine, cosine = sine_and_cosine(_spread(drawn[:, _SHEAR], settings.shear) * (pi / 180))
    strength = np.array(settings.jitter)
    middle, lowest = np.array([1.0, 1.0, 1.0, 0.0]), np.array([0.0, 0.0, 0.0, -0.5])
    low = np.maximum(middle - strength, lowest)
    return Placement(
        left=column + np.floor(drawn[:, _LEFT] * (side - wide + 1)),
        top=row + np.floor(drawn[:, _TOP] * (side - high + 1)),
        width=wide,
        height=high,
        angle=_spread(drawn[:, _TURN], settings.rotation) * (pi / 180),
        slope=sine / cosine,
        mirror=np.where(drawn[:, _FLIP] < settings.flip, -1.0, 1.0),
        coloured=drawn[:, _COLOURED] < settings.jitter_probability,
        colours=low + drawn[:, _COLOURS] * (middle + strength - low),
    )


def _second_crop(settings: PatchSettings, side: int, areas: Floats, ratios: Floats) -> tuple[Floats, Floats]:
    """Width and height: the first of ten tries that fits into the first crop, or else all of it, as is usual."""
    low, high = settings.area
    area = (low + areas * (high - low)) * (side * side)
    ratio = log_uniform(ratios, *settings.ratio)
    wide, tall = np.floor(np.sqrt(area * ratio) + 0.5), np.floor(np.sqrt(area / ratio) + 0.5)
    fits = (wide >= 1) & (wide <= side) & (tall >= 1) & (tall <= side)
    first = fits.argmax(axis=1)[:, None]
    some = fits.any(axis=1)
    return (
        np.where(some, np.take_along_axis(wide, first, axis=1)[:, 0], float(side)),
        np.where(some, np.take_along_axis(tall, first, axis=1)[:, 0], float(side)),
    )


def _spread(draws: Floats, most: float) -> Floats:
    return (2.0 * draws - 1.0) * most


@dataclass(frozen=True)
class Maps:
    """Maps from a patch's pixels to the image.

    With (u, v) a pixel's distance from the patch's centre, (p, q) = `turn` (u, v) is its position in the resized crop,
    from its centre, and `middle` + `scale` (p, q) its position in the image.
    """

    turn: Floats  # (patches, 2, 2)
    middle: Floats  # (patches, 2): x, y
    scale: Floats  # (patches, 2): pixels of the image to one of the patch


def compose(placed: Placement, height: int, width: int) -> Maps:
    """The maps of patches of height x width pixels."""
    sine, cosine = sine_and_cosine(placed.angle)
    across = np.stack([(cosine - placed.slope * sine) * placed.mirror, sine + placed.slope * cosine], axis=1)
    down = np.stack([-sine * placed.mirror, cosine], axis=1)
    return Maps(
        turn=np.stack([across, down], axis=1),
        middle=np.stack([placed.left + placed.width / 2, placed.top + placed.height / 2], axis=1),
        scale=np.stack([placed.width / resized(width), placed.height / resized(height)], axis=1),
    )


def outlines(placed: Placement, height: int, width: int) -> Floats:
    """The corners (patches, 4, 2) of patches in the image, clockwise from the top left, for drawings."""
    maps = compose(placed, height, width)
    corners = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]]) * (width / 2, height / 2)
    turned: Floats = (maps.turn[:, None] * corners[None, :, None]).sum(axis=3)
    return maps.middle[:, None] + maps.scale[:, None] * turned


@dataclass(frozen=True)
class Pyramid:
    """An image pyramid of halving sizes, stored in one row of bytes, so that downscaling uses averages.

    A patch that covers a large part of the image would otherwise sample single pixels and be noise. Pixel (r, c) of
    level n is the mean of 2^n x 2^n pixels; an odd row or column at the end is ignored.
    """

    pixels: NDArray[np.uint8]
    starts: Integers
    heights: Integers
    widths: Integers

    def level(self, scale: Floats) -> Integers:
        """The level whose pixels are nearest in size to a patch's: between 0.7 and 1.4 of it, by area."""
        area = scale[:, 0] * scale[:, 1]
        steps = np.array([2.0 ** (2 * n - 1) for n in range(1, len(self.starts))])
        levels: Integers = (area[:, None] >= steps).sum(axis=1, dtype=np.int64)
        return levels


def pyramid(image: NDArray[np.uint8], most: float) -> Pyramid:
    """The levels needed if one pixel of a patch covers up to `most` pixels of the image."""
    levels, total = [image], image.astype(np.uint32)
    for n in range(1, max(0, ceil(most)).bit_length() + 1):
        high, wide = total.shape[0] // 2 * 2, total.shape[1] // 2 * 2
        if not high or not wide:
            break
        even, odd = total[0:high:2], total[1:high:2]
        total = even[:, 0:wide:2] + even[:, 1:wide:2] + odd[:, 0:wide:2] + odd[:, 1:wide:2]
        levels.append(((total + (1 << (2 * n - 1))) >> (2 * n)).astype(np.uint8))
    return Pyramid(
        pixels=np.concatenate([level.reshape(-1) for level in levels]),
        starts=np.cumsum([0, *(level.size for level in levels[:-1])]).astype(np.int64),
        heights=np.array([level.shape[0] for level in levels], np.int64),
        widths=np.array([level.shape[1] for level in levels], np.int64),
    )
