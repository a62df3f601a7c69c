"""Compiled rendering of patch pixels; imported when first used, because numba loads slowly.

All arithmetic is in double precision, in the order written and without fused operations, so that every machine rounds
equally. A patch is computed while it is in the cache, which is many times faster than numpy passes over all patches.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fedstill.core.jit import compiled

Array = npt.NDArray[Any]


@compiled()
def _luma(red: float, green: float, blue: float) -> float:
    """Luma by Rec. 601."""
    return 0.299 * red + 0.587 * green + 0.114 * blue


@compiled()
def _clipped(value: float) -> float:
    return min(max(value, 0.0), 255.0)


@compiled()
def _sample(
    pixels: Array,
    shape: Array,
    turn: Array,
    middle: Array,
    scale: Array,
    reach: Array,
    patch: Array,
) -> None:
    """Fill a patch (3, height, width) from one level (start, height, width) of the pyramid, by bilinear interpolation.

    Pixels farther from the centre of the resized crop than `reach` are black; beyond the image its last pixel repeats.
    """
    start, high, wide = shape[0], shape[1], shape[2]
    height, width = patch.shape[1], patch.shape[2]
    for row in range(height):
        v = row + 0.5 - height / 2
        for column in range(width):
            u = column + 0.5 - width / 2
            p = turn[0, 0] * u + turn[0, 1] * v
            q = turn[1, 0] * u + turn[1, 1] * v
            if abs(p) > reach[0] or abs(q) > reach[1]:
                patch[0, row, column] = patch[1, row, column] = patch[2, row, column] = 0.0
                continue
            x = min(max(middle[0] + scale[0] * p - 0.5, 0.0), wide - 1.0)
            y = min(max(middle[1] + scale[1] * q - 0.5, 0.0), high - 1.0)
            left, top = int(x), int(y)
            right, below = min(left + 1, wide - 1), min(top + 1, high - 1)
            x, y = x - left, y - top
            a, b = start + 3 * (top * wide + left), start + 3 * (top * wide + right)
            c, d = start + 3 * (below * wide + left), start + 3 * (below * wide + right)
            for channel in range(3):
                upper = pixels[a + channel] * (1.0 - x) + pixels[b + channel] * x
                lower = pixels[c + channel] * (1.0 - x) + pixels[d + channel] * x
                patch[channel, row, column] = upper * (1.0 - y) + lower * y


@compiled()
def _turn_hue(red: float, green: float, blue: float, shift: float) -> tuple[float, float, float]:
    """The same value and saturation with the hue shifted by a fraction of a turn."""
    value, low = max(red, green, blue), min(red, green, blue)
    span = value - low
    if span == 0.0:
        return red, green, blue
    if value == red:
        hue = (green - blue) / span
    elif value == green:
        hue = 2.0 + (blue - red) / span
    else:
        hue = 4.0 + (red - green) / span
    hue += 6.0 * shift
    hue -= 6.0 * np.floor(hue / 6.0)
    sector = int(hue)
    part = hue - sector
    falling, rising = value - span * part, low + span * part
    if sector == 0 or sector == 6:
        return value, rising, low
    if sector == 1:
        return falling, value, low
    if sector == 2:
        return low, value, rising
    if sector == 3:
        return low, falling, value
    if sector == 4:
        return rising, low, value
    return value, low, falling


@compiled()
def _colour(patch: Array, colours: Array) -> None:
    """Brightness, contrast (about the patch's mean grey), saturation (about each pixel's grey) and hue, in place."""
    brightness, contrast, saturation, shift = colours[0], colours[1], colours[2], colours[3]
    height, width = patch.shape[1], patch.shape[2]
    mean = 0.0
    for row in range(height):
        for column in range(width):
            for channel in range(3):
                patch[channel, row, column] = _clipped(patch[channel, row, column] * brightness)
            mean += _luma(patch[0, row, column], patch[1, row, column], patch[2, row, column])
    mean /= height * width
    for row in range(height):
        for column in range(width):
            red = _clipped(mean + (patch[0, row, column] - mean) * contrast)
            green = _clipped(mean + (patch[1, row, column] - mean) * contrast)
            blue = _clipped(mean + (patch[2, row, column] - mean) * contrast)
            grey = _luma(red, green, blue)
            red = _clipped(grey + (red - grey) * saturation)
            green = _clipped(grey + (green - grey) * saturation)
            blue = _clipped(grey + (blue - grey) * saturation)
            red, green, blue = _turn_hue(red, green, blue, shift)
            patch[0, row, column], patch[1, row, column], patch[2, row, column] = red, green, blue


@compiled()
def render(
    pixels: Array,
    shapes: Array,
    turn: Array,
    middle: Array,
    scale: Array,
    reach: Array,
    coloured: Array,
    colours: Array,
    out: Array,
) -> None:
    """Write patches (patches, channels, height, width), rounded to 8 bits; one channel is grey.

    `shapes` (start, height, width of a level), `middle` and `scale` are those of the level that each patch uses.
    """
    count, channels, height, width = out.shape
    patch = np.empty((3, height, width))
    for number in range(count):
        _sample(pixels, shapes[number], turn[number], middle[number], scale[number], reach, patch)
        if coloured[number]:
            _colour(patch, colours[number])
        for row in range(height):
            for column in range(width):
                red, green, blue = patch[0, row, column], patch[1, row, column], patch[2, row, column]
                if channels == 1:
                    out[number, 0, row, column] = np.uint8(_luma(red, green, blue) + 0.5)
                else:
                    out[number, 0, row, column] = np.uint8(red + 0.5)
                    out[number, 1, row, column] = np.uint8(green + 0.5)
                    out[number, 2, row, column] = np.uint8(blue + 0.5)
