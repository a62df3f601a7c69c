"""Airborne and terrestrial laser scans (.las), without compression."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedstill.core.errors import InputError
from fedstill.data.readers.raw import content

_HEADER = 227  # bytes of the shortest
_LARGE = 247 + 8  # bytes up to the 64-bit number of points of version 1.4
_SMALLEST_ROW = 20  # bytes of a point in format 0


def read_las(path: Path) -> NDArray[np.float64]:
    """The coordinates (points, 3) of a file, scaled and offset as its header says."""
    data = content(path)
    if data[:4] != b"LASF":
        raise InputError(f"{path} is no LAS file: it does not begin with LASF")
    if len(data) < _HEADER:
        raise InputError(f"{path} is damaged: its header is incomplete, so fetch it again")
    minor = data[25]
    (begin,) = struct.unpack_from("<I", data, 96)
    layout, row, count = struct.unpack_from("<BHI", data, 104)
    if layout & 0xC0 or path.suffix.lower() == ".laz":
        raise InputError(f"{path} is compressed (LAZ), which cannot be read: convert it to .las, e.g. with PDAL")
    if minor >= 4 and len(data) >= _LARGE:
        count = struct.unpack_from("<Q", data, 247)[0] or count
    scale, offset = np.frombuffer(data, "<f8", 3, 131), np.frombuffer(data, "<f8", 3, 155)
    if row < _SMALLEST_ROW or not np.isfinite([scale, offset]).all() or (scale == 0).any():
        raise InputError(f"{path} is damaged: its header has an impossible size of points or scale, so fetch it again")
    if begin < _HEADER or begin + count * row > len(data):
        there = max(0, len(data) - begin) // row
        raise InputError(f"{path} is incomplete: it has {there:,} of {count:,} points, so fetch it again")
    rows = np.frombuffer(data, np.uint8, count * row, begin).reshape(count, row)
    numbers = np.ascontiguousarray(rows[:, :12]).view("<i4")
    scaled: NDArray[np.float64] = numbers * scale + offset
    return scaled
