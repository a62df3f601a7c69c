"""Clouds of the Point Cloud Library (.pcd): text, binary, and compressed binary.

Rows with NaN are left out: the format marks missing returns of a sensor so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedstill.core.errors import InputError
from fedstill.data.readers.point_colours import no_colours, with_colours
from fedstill.data.readers.point_normals import FIELDS, no_normals, with_normals
from fedstill.data.readers.raw import content

Floats = NDArray[np.float64]
Column = NDArray[Any]

_KINDS = {"F": "f", "I": "i", "U": "u"}
_MOST_LINES = 32  # of a header
_ENCODINGS = ("ascii", "binary", "binary_compressed")
_PACKED = ("rgb", "rgba")  # colours in one number


@dataclass(frozen=True)
class _Header:
    fields: tuple[str, ...]
    types: tuple[np.dtype[np.generic], ...]
    counts: tuple[int, ...]
    points: int
    encoding: str

    @property
    def row(self) -> np.dtype[np.void]:
        """One point in a binary file."""
        named = [(f"{at} {name}", kind, (count,)) for at, (name, kind, count) in enumerate(self._columns())]
        return np.dtype(named)

    def _columns(self) -> list[tuple[str, np.dtype[np.generic], int]]:
        return list(zip(self.fields, self.types, self.counts, strict=True))

    @property
    def colour_fields(self) -> tuple[str, ...]:
        """The fields that hold the colours, if there are any: one packed number, or three."""
        for names in (("rgb",), ("rgba",), ("r", "g", "b"), ("red", "green", "blue")):
            if set(names) <= set(self.fields):
                return names
        return ()


def read_pcd(path: Path, colour: bool = False, normals: bool = False) -> Floats:
    """The coordinates (points, 3) of a file, in its order; with `colour` or `normals`, (points, 6)."""
    data = content(path)
    try:
        header, start = _header(data)
        names = header.colour_fields if colour else ()
        if normals:
            names = FIELDS if set(FIELDS) <= set(header.fields) else ()
        found = _fields(header, data[start:], ("x", "y", "z", *names))
    except (ValueError, IndexError, KeyError, OverflowError) as error:
        why = " ".join(str(error).split())
        raise InputError(f"{path} is no PCD file that can be read ({why}): write it again") from None
    points = np.stack([column.astype(np.float64) for column in found[:3]], axis=1)
    there = ~np.isnan(points).any(axis=1)
    if normals and not names:
        raise no_normals(path)
    if normals:
        return with_normals(points[there], np.stack(found[3:], axis=1)[there])
    if not colour:
        return points[there]
    if not names:
        raise no_colours(path)
    colours = _unpacked(found[3]) if len(names) == 1 else np.stack(found[3:], axis=1)
    return with_colours(points[there], colours[there], path)


def _unpacked(packed: Column) -> NDArray[np.uint8]:
    """Red, green and blue of packed colours: bytes of a 32-bit number, blue first, whatever type it is declared as.

    >>> _unpacked(np.array([0x00FF8000], "<u4")).tolist()
    [[255, 128, 0]]
    """
    if packed.dtype.itemsize != 4:
        raise ValueError("packed colours are no 32-bit numbers")
    return np.ascontiguousarray(packed).view(np.uint8).reshape(-1, 4)[:, 2::-1]


def _fields(header: _Header, body: bytes, names: tuple[str, ...]) -> list[Column]:
    """The first number of each of these fields, of all points."""
    read = {"ascii": _table, "binary": _rows, "binary_compressed": _columns}[header.encoding]
    return read(header, body, [header.fields.index(name) for name in names])


def _header(data: bytes) -> tuple[_Header, int]:
    """The header, and where the points begin."""
    entries: dict[str, list[str]] = {}
    start = 0
    for _ in range(_MOST_LINES):
        end = data.find(b"\n", start)
        if end < 0:
            break
        line, start = data[start:end].decode("ascii", errors="replace").strip(), end + 1
        key, _, rest = line.partition(" ")
        if line and not line.startswith("#"):
            entries[key.upper()] = rest.split()
        if key.upper() == "DATA":
            return _described(entries), start
    raise ValueError("its header has no line DATA")


def _described(entries: dict[str, list[str]]) -> _Header:
    missing = [key for key in ("FIELDS", "SIZE", "TYPE", "DATA") if not entries.get(key)]
    if missing:
        raise ValueError(f"its header has no line {missing[0]}")
    fields = tuple(entries["FIELDS"])
    sizes, letters = entries["SIZE"], entries["TYPE"]
    counts = tuple(int(word) for word in entries.get("COUNT") or ["1"] * len(fields))
    if not len(fields) == len(sizes) == len(letters) == len(counts) or min(counts) < 1:
        raise ValueError("its lines FIELDS, SIZE, TYPE and COUNT do not fit together")
    lacking = [axis for axis in "xyz" if axis not in fields]
    if lacking:
        raise ValueError(f"it has no field {lacking[0]}")
    types = tuple(np.dtype(f"<{_KINDS[letter.upper()]}{size}") for letter, size in zip(letters, sizes, strict=True))
    sides = [int(entries[key][0]) for key in ("WIDTH", "HEIGHT") if entries.get(key)]
    points = int(entries["POINTS"][0]) if entries.get("POINTS") else prod(sides) if sides else -1
    encoding = entries["DATA"][0].lower()
    if points < 0:
        raise ValueError("its header does not say how many points there are")
    if encoding not in _ENCODINGS:
        raise ValueError(f"its points are encoded as {encoding}, and not as {', '.join(_ENCODINGS)}")
    return _Header(fields, types, counts, points, encoding)


def _table(header: _Header, body: bytes, places: Sequence[int]) -> list[Column]:
    lines = [line for line in body.decode("ascii", errors="replace").splitlines() if line.strip()]
    if len(lines) < header.points:
        raise ValueError(f"it has {len(lines):,} of {header.points:,} points")
    starts = np.cumsum([0, *header.counts[:-1]])
    columns = [int(starts[at]) for at in places]
    if not header.points:
        return [np.zeros(0) for _ in columns]
    table = np.loadtxt(lines[: header.points], np.float64, usecols=columns, ndmin=2)
    return [_typed(column, header, at) for column, at in zip(table.T, places, strict=True)]


def _typed(column: Floats, header: _Header, at: int) -> Column:
    """A column of text; packed colours in a type with their bytes.

    Those declared as floats are printed as the number itself or as the float with its bytes, tiny or negative.
    """
    if header.fields[at] not in _PACKED:
        return column
    as_number = bool(((column >= 0) & (column < 2**32) & (column == np.rint(column))).all())
    return column.astype("<u4" if as_number else header.types[at])


def _rows(header: _Header, body: bytes, places: Sequence[int]) -> list[Column]:
    if len(body) < header.points * header.row.itemsize:
        raise ValueError(f"it has {len(body) // header.row.itemsize:,} of {header.points:,} points")
    rows = np.frombuffer(body, header.row, header.points)
    return [rows[f"{at} {header.fields[at]}"][:, 0] for at in places]


def _columns(header: _Header, body: bytes, places: Sequence[int]) -> list[Column]:
    """Compressed points are stored field by field."""
    packed, size = (int.from_bytes(body[at : at + 4], "little") for at in (0, 4))
    if len(body) < 8 + packed or size != header.points * header.row.itemsize:
        raise ValueError("its compressed points are incomplete")
    whole = decompressed(body[8 : 8 + packed], size)
    starts = np.cumsum(
        [0, *(header.points * kind.itemsize * count for kind, count in zip(header.types, header.counts, strict=True))]
    )
    return [
        np.frombuffer(whole, header.types[at], header.points * header.counts[at], int(starts[at]))[:: header.counts[at]]
        for at in places
    ]


def decompressed(data: bytes, size: int) -> bytes:
    """The bytes that LZF compressed, which must be this many.

    Each instruction is a byte: below 32, so many bytes and one more follow as they are; otherwise earlier output is
    repeated, with its length in the upper three bits (7: plus the next byte) and its distance in the other bits.

    >>> decompressed(bytes([2, 97, 98, 99, 0x20, 2]), 6)
    b'abcabc'
    """
    out = bytearray()
    at = 0
    while at < len(data):
        first = data[at]
        at += 1
        if first < 32:
            out += data[at : at + first + 1]
            at += first + 1
            continue
        length = first >> 5
        if length == 7:
            length += data[at]
            at += 1
        distance = ((first & 31) << 8) + data[at] + 1
        at += 1
        begin, length = len(out) - distance, length + 2
        if begin < 0 or len(out) > size:
            raise ValueError("its compressed points are damaged")
        # The repeated part may reach into what is being written: then it is periodic.
        piece = bytes(out[begin : begin + length])
        out += (piece * (length // len(piece) + 1))[:length]
    if len(out) != size:
        raise ValueError("its compressed points are damaged")
    return bytes(out)
