"""Image files through Pillow, whose many ways of failing become one sentence."""

from __future__ import annotations

import struct
import warnings
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

from fedstill.core.errors import InputError
from fedstill.data.readers.raw import Array, content

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"})
GREY_MODES = frozenset({"1", "L", "LA", "I", "I;16", "F"})
_DAMAGE = (OSError, SyntaxError, ValueError, EOFError, struct.error, zlib.error)
# Pillow warns of very large images, and refuses twice as large ones, as attacks on memory.
_TOO_LARGE = (Image.DecompressionBombError, Image.DecompressionBombWarning)


def header(path: Path) -> tuple[tuple[int, int], str]:
    """Width and height, and Pillow's mode, without decoding the pixels."""
    with _opened(path) as image:
        return image.size, image.mode


def decode(path: Path, mode: str, size: tuple[int, int] | None = None) -> Array:
    """The pixels in a mode (`L` or `RGB`), resized if a size (width, height) is given and differs."""
    with _opened(path) as image:
        try:
            pixels = image.convert(mode)
        except _DAMAGE as error:
            raise InputError(f"{path} is a damaged image ({error})") from None
        if size is not None and pixels.size != size:
            pixels = pixels.resize(size, Image.Resampling.BILINEAR)
        return np.asarray(pixels)


def _opened(path: Path) -> Image.Image:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            return Image.open(path)
    except _TOO_LARGE:
        raise InputError(f"{path} is an image of too many pixels to be opened safely") from None
    except _DAMAGE:
        content(path)  # a missing or empty file has a plainer sentence
        raise InputError(f"{path} is no image that Pillow can read") from None
