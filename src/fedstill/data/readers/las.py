"""Airborne and terrestrial laser scans: .las, and compressed as .laz with laspy and lazrs (the extra `las`)."""

from __future__ import annotations

import struct
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedstill.core.errors import InputError
from fedstill.data.readers.point_colours import no_colours, with_colours
from fedstill.data.readers.raw import content

_HEADER = 227  # bytes of the shortest
_LARGE = 247 + 8  # bytes up to the 64-bit number of points of version 1.4
_SMALLEST_ROW = 20  # bytes of a point in format 0
_COMPRESSED = 0xC0  # bits of the format of points
_EXPANSION = 200  # the most bytes of points for a byte of a compressed file; files of scans have about ten
_SMALL = 2**26  # bytes of points that any compressed file may have
_COLOURS = {2: 20, 3: 28, 5: 28, 7: 30, 8: 30, 10: 30}  # by format of points: where red, green and blue begin


def read_las(path: Path, colour: bool = False) -> NDArray[np.float64]:
    """The coordinates (points, 3) of a file, scaled and offset as its header says; with `colour`, (points, 6)."""
    data = content(path)
    if data[:4] != b"LASF":
        raise InputError(f"{path} is no LAS file: it does not begin with LASF")
    if len(data) < _HEADER:
        raise InputError(f"{path} is damaged: its header is incomplete, so fetch it again")
    minor = data[25]
    (begin,) = struct.unpack_from("<I", data, 96)
    layout, row, count = struct.unpack_from("<BHI", data, 104)
    if minor >= 4 and len(data) >= _LARGE:
        count = struct.unpack_from("<Q", data, 247)[0] or count
    scale, offset = np.frombuffer(data, "<f8", 3, 131), np.frombuffer(data, "<f8", 3, 155)
    if row < _SMALLEST_ROW or not np.isfinite([scale, offset]).all() or (scale == 0).any():
        raise InputError(f"{path} is damaged: its header has an impossible size of points or scale, so fetch it again")
    if layout & _COMPRESSED:
        data, begin, layout = _expanded(path, data, count, row), 0, layout & ~_COMPRESSED
    elif begin < _HEADER:
        raise InputError(f"{path} is damaged: its points begin within its header, so fetch it again")
    if begin + count * row > len(data):
        there = max(0, len(data) - begin) // row
        raise InputError(f"{path} is incomplete: it has {there:,} of {count:,} points, so fetch it again")
    rows = np.frombuffer(data, np.uint8, count * row, begin).reshape(count, row)
    numbers = np.ascontiguousarray(rows[:, :12]).view("<i4")
    scaled: NDArray[np.float64] = numbers * scale + offset
    if not colour:
        return scaled
    begin = _COLOURS.get(layout, row)
    if begin + 6 > row:
        raise no_colours(path)
    return with_colours(scaled, np.ascontiguousarray(rows[:, begin : begin + 6]).view("<u2"), path)


def _expanded(path: Path, data: bytes, count: int, row: int) -> bytes:
    """The rows of points of a compressed file, one after the other."""
    if count * row > max(_EXPANSION * len(data), _SMALL):
        raise InputError(f"{path} is damaged: {len(data):,} bytes cannot hold {count:,} points, so fetch it again")
    laspy = _package("laspy", path)
    _package("lazrs", path)
    try:
        rows: bytes = laspy.read(BytesIO(data), laz_backend=laspy.LazBackend.Lazrs).points.array.tobytes()
    except Exception as error:  # parsers and decoders raise any kind of error
        raise InputError(f"{path} is damaged ({' '.join(str(error).split())[:200]}): fetch it again") from None
    return rows


def _package(name: str, path: Path) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise InputError(
            f"{path} is compressed (LAZ), and {name} is not installed: pip install 'fedstill[las]' brings it,"
            " or convert the file to .las"
        ) from None
