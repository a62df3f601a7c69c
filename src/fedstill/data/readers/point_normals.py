"""Normals of points: three numbers behind the coordinates, of length 1."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedstill.core.errors import InputError

Floats = NDArray[np.float64]
FIELDS = ("normal_x", "normal_y", "normal_z")  # of the Point Cloud Library
COLUMNS = 6  # of a cloud with normals


def with_normals(points: NDArray[Any], normals: NDArray[Any]) -> Floats:
    """Coordinates and normals side by side (points, 6); normals of other lengths are scaled, and zeros stay.

    >>> with_normals(np.zeros((2, 3)), np.array([[0, 0, 2], [0, 0, 0]]))[:, 5].tolist()
    [1.0, 0.0]
    """
    given = np.asarray(normals, np.float64)
    length = np.linalg.norm(given, axis=1, keepdims=True)
    return np.concatenate([np.asarray(points, np.float64), given / np.where(length > 0, length, 1.0)], axis=1)


def with_table_normals(table: NDArray[Any], where: Path) -> Floats:
    """The same of a table (points, columns): x, y, z and the normal come first."""
    if table.shape[1] < COLUMNS:
        raise no_normals(where)
    return with_normals(table[:, :3], table[:, 3:COLUMNS])


def no_normals(where: Path) -> InputError:
    """The error for a file without normals where they are asked for."""
    return InputError(
        f"{where} has no normals that can be read: they are columns 4 to 6 of .npy, .xyz, .pts and .txt, fields of"
        " .pcd, and those of the faces of a mesh; or leave normals=true out"
    )
