"""Colours of points: whatever a file holds, from -0.5 (dark) to 0.5 (light).

Files hold whole numbers from 0 to 255 or to 65535, or fractions from 0 to 1. They are scaled to 0..1, and 0.5 is
subtracted, as in the public code of VoteNet and 3DETR for SUN RGB-D. (For ScanNet that code subtracts the mean colour
of its scans; a constant makes no difference to a layer that BatchNorm follows.)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedstill.core.errors import InputError

Floats = NDArray[np.float64]

MEAN = 0.5
_BYTE, _WORD = 255, 65535


def scaled_colours(values: NDArray[Any], where: Path) -> Floats:
    """Colours (points, 3) of a file, from -0.5 to 0.5.

    Whole numbers are 8-bit unless one is larger, then 16-bit; fractions, and whole numbers up to 1 that are stored as
    floats, are from 0 to 1.

    >>> scaled_colours(np.array([[0, 255, 51]], np.uint8), Path("room.ply")).round(6).tolist()
    [[-0.5, 0.5, -0.3]]
    >>> scaled_colours(np.array([[0.0, 1.0, 0.2]]), Path("room.npy")).round(6).tolist()
    [[-0.5, 0.5, -0.3]]
    """
    given = np.asarray(values, np.float64)
    if not np.isfinite(given).all():
        raise InputError(f"{where} has colours that are not finite numbers: export it again")
    low, high = float(given.min(initial=0.0)), float(given.max(initial=0.0))
    whole = bool((given == np.rint(given)).all())
    if low < 0 or high > (_WORD if whole else 1):
        raise InputError(
            f"{where} has colours from {low:g} to {high:g}: they must be fractions from 0 to 1, or whole numbers from 0"
            f" to {_BYTE} or {_WORD}"
        )
    one = 1 if values.dtype.kind == "f" and high <= 1 else _BYTE if high <= _BYTE else _WORD
    return given / one - MEAN


def with_table_colours(table: NDArray[Any], where: Path) -> Floats:
    """Coordinates and colours (points, 6) of a table (points, columns): x, y, z, red, green and blue come first."""
    if table.shape[1] < 6:
        raise no_colours(where)
    return with_colours(table[:, :3], table[:, 3:6], where)


def with_colours(points: NDArray[Any], colours: NDArray[Any], where: Path) -> Floats:
    """Coordinates and scaled colours side by side (points, 6)."""
    return np.concatenate([np.asarray(points, np.float64), scaled_colours(colours, where)], axis=1)


def no_colours(where: Path) -> InputError:
    """The error for a file without colours where they are asked for."""
    return InputError(f"{where} has no colours of points: export it with colours, or leave colour out of the features")
