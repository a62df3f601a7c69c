"""Image files read with Pillow, whose various errors become one message."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image

from fedstill.core.errors import InputError
from fedstill.core.files import check_regular
from fedstill.data.data_settings import Fit
from fedstill.data.readers import dicom
from fedstill.data.readers.raw import Array, content

_log = logging.getLogger(__name__)

_PILLOW = frozenset({".png", ".jpg", ".jpeg", ".jfif", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"})
SUFFIXES = _PILLOW | dicom.SUFFIXES
_MAY_HOLD_SEVERAL = frozenset({".gif", ".tif", ".tiff", ".webp"})
DEEP_MODES = frozenset({"I", "I;16", "I;16B", "I;16L", "I;16N", "F"})
GREY_MODES = DEEP_MODES | {"1", "L", "LA"}
_SIXTEEN_BITS = 65_535
# Pillow warns of very large images, and refuses twice as large ones, as decompression bombs.
_TOO_LARGE = (Image.DecompressionBombError, Image.DecompressionBombWarning)
_UPRIGHT = {  # the transformation for each EXIF orientation
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_ON_ITS_SIDE = (5, 6, 7, 8)


class ImageForm(NamedTuple):
    """What all images of a data set are converted to."""

    mode: str  # of Pillow
    size: tuple[int, int]
    fit: Fit

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one decoded image."""
        width, height = self.size
        return (height, width) if self.mode == "L" else (height, width, 3)


def is_image(path: Path) -> bool:
    """Whether a file is read as an image, by its name, or as DICOM without a suffix."""
    if path.name.startswith(".") or not path.is_file():
        return False
    return path.suffix.lower() in _PILLOW or _is_dicom(path)


def _is_dicom(path: Path) -> bool:
    return path.suffix.lower() in dicom.SUFFIXES or dicom.is_unnamed(path)


def holds_several(path: Path) -> bool:
    """Whether a file has further pictures, such as pages, of which only the first is read."""
    if path.suffix.lower() not in _MAY_HOLD_SEVERAL:
        return False
    with _opened(path) as image:
        try:
            return getattr(image, "n_frames", 1) > 1
        except Exception:  # a damaged file is reported where it is decoded
            _log.debug("the pictures in %s cannot be counted", path, exc_info=True)
            return False


def header(path: Path) -> tuple[tuple[int, int], str]:
    """Width and height as a viewer shows them, and Pillow's mode, without decoding the pixels."""
    if _is_dicom(path):
        return dicom.header(path)
    with _opened(path) as image:
        width, height = image.size
        return (height, width) if _orientation(image) in _ON_ITS_SIDE else (width, height), image.mode


def decode(
    path: Path, mode: str, size: tuple[int, int] | None = None, alone: bool = False, fit: Fit = "resize"
) -> NDArray[np.uint8]:
    """The pixels in a mode (`L` or `RGB`), 8-bit, in a size (width, height) if one is given.

    Pixels are as a viewer shows them: rotated by the EXIF orientation, with transparency on white. Of 16 bits the upper
    8 are kept, rounded, and floats range from 0 to 1, so that images of one data set stay comparable. An image that is
    read `alone`, which must be a still image, may have any range: it is scaled from darkest to brightest.
    """
    with dicom.image(path) if _is_dicom(path) else _opened(path) as image:
        pixels = converted(image, mode, path, alone)
        return np.asarray(pixels if size is None else fitted(pixels, size, fit))


def converted(image: Image.Image, mode: str, where: Path, alone: bool = False) -> Image.Image:
    """An image as `decode` gives its pixels, in its own size."""
    try:
        # A photo in several sizes (MPO) is one photo.
        frames = getattr(image, "n_frames", 1) if alone and image.format != "MPO" else 1
        if frames > 1:
            raise InputError(f"{where} holds {frames} pictures: give a still image")
        upright = _UPRIGHT.get(_orientation(image))
        pixels = image if upright is None else image.transpose(upright)
        if pixels.mode in DEEP_MODES:
            pixels = Image.fromarray(_eight_bits(np.asarray(pixels), pixels.mode, alone, where))
        elif pixels.has_transparency_data:
            solid = Image.new("RGBA", pixels.size, "white")
            solid.alpha_composite(pixels.convert("RGBA"))
            pixels = solid
        return pixels.convert(mode)
    except InputError:
        raise
    except Exception as error:  # decoders raise any kind of error
        raise InputError(f"{where} is a damaged image ({' '.join(str(error).split())})") from None


def fitted(image: Image.Image, size: tuple[int, int], fit: Fit) -> Image.Image:
    """The image in a size (width, height): stretched, its centre, or with black margins.

    Bilinear, and where an image is made smaller each pixel is an average over what it covers.

    >>> wide = Image.new("L", (40, 20), "white")
    >>> [fitted(wide, (8, 8), fit).getpixel((0, 0)) for fit in ("resize", "crop", "pad")]
    [255, 255, 0]
    """
    if image.size == size:
        return image
    (width, height), (wide, high) = image.size, size
    if fit == "pad":
        scale = min(wide / width, high / height)
        inner = (max(1, round(width * scale)), max(1, round(height * scale)))
        whole = Image.new(image.mode, size)
        smaller = image.resize(inner, Image.Resampling.BILINEAR)
        whole.paste(smaller, ((wide - inner[0]) // 2, (high - inner[1]) // 2))
        return whole
    box: tuple[float, float, float, float] = (0, 0, width, height)
    if fit == "crop":
        scale = min(width / wide, height / high)
        left, top = (width - wide * scale) / 2, (height - high * scale) / 2
        box = (left, top, left + wide * scale, top + high * scale)
    return image.resize(size, Image.Resampling.BILINEAR, box=box)


def _eight_bits(deep: Array, mode: str, alone: bool, path: Path) -> NDArray[np.uint8]:
    """Scaled by the range of the mode; values outside it have an unknown range."""
    values = deep.astype(np.float64)
    if not np.isfinite(values).all():
        raise InputError(f"{path} holds pixels that are NaN or infinite")
    low, high = 0.0, 1.0 if mode == "F" else float(_SIXTEEN_BITS)
    darkest, brightest = float(values.min()), float(values.max())
    if alone and (mode == "F" or darkest < low or brightest > high):
        low, high = darkest, brightest if brightest > darkest else darkest + 1
    elif darkest < low or brightest > high:
        kind = "floats" if mode == "F" else "whole numbers"
        raise InputError(
            f"{path} holds {kind} from {darkest:g} to {brightest:g}, and black to white are {low:g} to {high:g}:"
            " write it anew with 8 or 16 bits"
        )
    return np.floor((values - low) / (high - low) * 255 + 0.5).astype(np.uint8)


def _orientation(image: Image.Image) -> int:
    """The EXIF orientation in the header; Pillow itself rotates TIFF files."""
    if "exif" not in image.info:  # otherwise Pillow would decode a PNG to search behind its pixels
        return 1
    try:
        return int(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # a damaged header is ignored: the pixels may be intact
        _log.debug("the orientation in an image header cannot be read", exc_info=True)
        return 1


def _opened(path: Path) -> Image.Image:
    check_regular(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            return Image.open(path)
    except _TOO_LARGE:
        raise InputError(f"{path} is an image of too many pixels to be opened safely") from None
    except Exception:
        _log.debug("Pillow cannot open %s", path, exc_info=True)
        content(path)  # a missing or empty file has a clearer message
        raise InputError(f"{path} is no image that Pillow can read") from None
