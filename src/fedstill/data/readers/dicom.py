"""DICOM files with one image each, read with pydicom (the extra `dicom`)."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fedstill.core.errors import InputError
from fedstill.data.readers.raw import Array, content

SUFFIXES = frozenset({".dcm", ".dicom", ".ima"})
_PREAMBLE, _MAGIC = 128, b"DICM"


def is_unnamed(path: Path) -> bool:
    """Whether a file without a suffix, or called by numbers, is DICOM: exports from an archive often have none."""
    if path.suffix and not path.suffix[1:].isdigit():
        return False
    try:
        with path.open("rb") as file:
            return file.read(_PREAMBLE + len(_MAGIC))[_PREAMBLE:] == _MAGIC
    except OSError:  # reported where it is read
        return False


def header(path: Path) -> tuple[tuple[int, int], str]:
    """Width, height and the Pillow mode of the image, without decoding its pixels."""
    file = _opened(path, stop_before_pixels=True)
    try:
        size = (int(file.Columns), int(file.Rows))
        grey = int(file.get("SamplesPerPixel", 1)) == 1
    except (AttributeError, TypeError, ValueError):
        raise InputError(f"{path} holds no image: leave it out") from None
    if not grey:
        return size, "RGB"
    return size, "I;16" if int(file.get("BitsStored", 8)) > 8 else "L"


def image(path: Path) -> Image.Image:
    """The image as a viewer shows it: 8 bits, in the file's first window, or over the range of its bits without one."""
    file = _opened(path)
    try:
        frames = int(file.get("NumberOfFrames", 1) or 1)
        if frames > 1:
            raise InputError(f"{path} holds {frames} frames: write each as a file of its own")
        pixels = import_module("pydicom.pixels").pixel_array(file)
        return Image.fromarray(pixels if pixels.ndim == 3 else _grey(file, pixels))
    except InputError:
        raise
    except Exception as error:  # decoders raise any kind of error
        raise InputError(f"{path} is a damaged image ({' '.join(str(error).split())})") from None


def _grey(file: Any, pixels: Array) -> Array:
    slope, intercept = float(file.get("RescaleSlope", 1)), float(file.get("RescaleIntercept", 0))
    low, high = window(file, slope, intercept)
    values = np.clip((pixels.astype(np.float64) * slope + intercept - low) / (high - low), 0, 1)
    if file.get("PhotometricInterpretation") == "MONOCHROME1":  # small values are bright
        values = 1 - values
    return np.floor(values * 255 + 0.5).astype(np.uint8)


def window(file: Any, slope: float, intercept: float) -> tuple[float, float]:
    """The values that are black and white: the linear window of DICOM (PS3.3 C.11.2), else the range of the bits."""
    centre, width = (_first(file.get(name)) for name in ("WindowCenter", "WindowWidth"))
    if centre is not None and width is not None and width > 1:
        return centre - 0.5 - (width - 1) / 2, centre - 0.5 + (width - 1) / 2
    bits, signed = int(file.get("BitsStored", 8)), int(file.get("PixelRepresentation", 0))
    lowest = -(2 ** (bits - 1)) if signed else 0
    ends = sorted(stored * slope + intercept for stored in (lowest, lowest + 2**bits - 1))
    return ends[0], ends[1]


def _first(value: Any) -> float | None:
    if value is None or value == "":
        return None
    return float(value if isinstance(value, int | float | str) else value[0])


def _opened(path: Path, **options: Any) -> Any:
    try:
        pydicom = import_module("pydicom")
    except ImportError:
        raise InputError(f"{path} is a DICOM file: pip install 'fedstill[dicom]' brings what reads it") from None
    try:
        return pydicom.dcmread(path, **options)
    except Exception as error:  # a damaged file can raise any kind of error
        content(path)  # a missing or empty file has a clearer message
        raise InputError(f"{path} is no DICOM file ({' '.join(str(error).split())[:200]})") from None
