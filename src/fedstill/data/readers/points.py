"""One shape from one file: a table of coordinates, an array, or a mesh."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedstill.core.errors import InputError
from fedstill.core.streams import Streams
from fedstill.data.clouds import finite_points
from fedstill.data.readers import meshes
from fedstill.data.readers.npz import lone_array
from fedstill.data.readers.pcd import read_pcd
from fedstill.data.readers.point_colours import no_colours, with_table_colours
from fedstill.data.readers.point_normals import COLUMNS, no_normals, with_table_normals
from fedstill.data.readers.raw import content, refuse_empty

TABLES = (".xyz", ".pts", ".txt")
SUFFIXES = (*meshes.SUFFIXES, ".npy", *TABLES)
ARCHIVE = ".npz"
SHAPES = (*SUFFIXES, ".pcd", ARCHIVE)  # in folders of shapes; scans of rooms in the last two are read whole
_KEYS = ("points", "x", "cloud", "pc")  # names of a cloud in an archive
Cloud = NDArray[np.float32]
_MOST_COLUMNS = 16  # of a cloud: coordinates, colours, normals and a few more


def read_shape(
    path: Path, points: int, key: str, notes: list[str] | None = None, colour: bool = False, normals: bool = False
) -> Cloud:
    """At most this many points of a shape, in random order, so that the first of them are a fair sample too.

    They are drawn from a stream named by `key`, the file's path in its data set: a shape does not depend on which
    others exist, or on the folder of the data set. With `notes`, a few points that are not finite are left out. With
    `colour` or `normals` there are six columns, these last.
    """
    generator = Streams(0).draw("shape", key)
    if path.suffix.lower() in meshes.SUFFIXES:
        vertices, faces = meshes.read_mesh(path, colour)
        if len(faces):
            return sound(meshes.sample_surface(vertices, faces, points, generator, path, normals), path)
        if normals:
            raise no_normals(path)
        every = sound(vertices, path, notes)
    elif path.suffix.lower() == ".pcd":
        every = sound(read_pcd(path, colour, normals), path, notes)
    elif path.suffix.lower() == ARCHIVE:
        every = read_archive(path, notes, colour, normals)
    else:
        table = _array(path) if path.suffix.lower() == ".npy" else read_table(path, normals=normals, colour=colour)
        if normals:
            table = with_table_normals(table, path)
        every = sound(with_table_colours(table, path) if colour else table[:, : 6 if normals else 3], path, notes)
    return every[generator.permutation(len(every))[:points]]


def read_archive(path: Path, notes: list[str] | None = None, colour: bool = False, normals: bool = False) -> Cloud:
    """The one cloud of an .npz file, all its points in their order; with `colour` or `normals`, six columns."""
    content(path)
    try:
        with np.load(path, allow_pickle=False) as archive:
            key = next((key for key in _KEYS if key in archive), None)
            cloud = None if key is None else np.asarray(archive[key])
    except Exception as error:  # zip, header and data raise different errors
        raise InputError(f"{path} cannot be read as an archive ({' '.join(str(error).split())})") from None
    if cloud is None or cloud.ndim != 2 or cloud.shape[1] < 3 or cloud.dtype.kind not in "fiu":
        raise InputError(
            f"{path} should hold one cloud of the shape (points, 3), called {', '.join(_KEYS[:-1])} or"
            f" {_KEYS[-1]}; of an archive of many clouds give npz:FILE:ROW"
        )
    if normals:
        return sound(with_table_normals(cloud, path), path, notes)
    return sound(with_table_colours(cloud, path) if colour else cloud[:, :3], path, notes)


def read_table(path: Path, most: int | None = None, colour: bool = False, normals: bool = False) -> Cloud:
    """The first rows of a text file with x, y and z in its first columns, separated by commas or blanks.

    Colours or normals, if they are asked for, come next. A first line with a single number (the number of points, in
    .pts files) is skipped.
    """
    refuse_empty(path)
    lines = _lines(path, None if most is None else most + 1)
    if lines and len(lines[0].replace(",", " ").split()) == 1:
        del lines[0]
    if not lines:
        raise InputError(f"{path} holds no points")
    columns = COLUMNS if colour or normals else 3
    if len(lines[0].replace(",", " ").split()) < columns != 3:
        raise no_colours(path) if colour else no_normals(path)
    try:
        table: Cloud = np.loadtxt(
            lines[:most], np.float32, delimiter="," if "," in lines[0] else None, usecols=range(columns), ndmin=2
        )
    except (ValueError, IndexError) as error:
        why = " ".join(str(error).split())
        raise InputError(f"{path} is no table with the numbers x, y and z in its first columns ({why})") from None
    return table


def is_table(path: Path) -> bool:
    """Whether a text file starts like a cloud rather than like text."""
    try:
        first = [line.replace(",", " ").split() for line in _lines(path, 2)]
        numbers = [[float(word) for word in words[:3]] for words in first]
    except (OSError, ValueError):
        return False
    return bool(numbers) and len(numbers[-1]) == 3


def _lines(path: Path, most: int | None) -> list[str]:
    with path.open(encoding="utf-8", errors="replace") as file:
        return list(islice((line for line in file if line.strip() and not line.startswith(("#", "//"))), most))


def _array(path: Path) -> NDArray[np.floating]:
    array = lone_array(path)
    if array.ndim != 2 or array.shape[1] < 3 or array.dtype.kind not in "fiu":
        raise InputError(f"{path} should hold numbers of the shape (points, 3)")
    if len(array) < array.shape[1] > _MOST_COLUMNS:
        raise InputError(
            f"{path} has the shape {array.shape}, and a cloud has a row of x, y and z for each point: exchange its"
            " axes, or read signals as signals:FOLDER"
        )
    return array


def sound(cloud: NDArray[np.floating], path: Path, notes: list[str] | None = None) -> Cloud:
    """The cloud, if it is valid; otherwise an error. With `notes`, a few points that are not finite are left out."""
    if not len(cloud):
        raise InputError(f"{path} holds no points")
    if notes is not None:
        cloud, note = finite_points(cloud.astype(np.float64), path)
        notes += [note] if note else []
    if not np.isfinite(cloud).all():
        bad = int((~np.isfinite(cloud)).any(axis=1).sum())
        raise InputError(f"{path}: {bad:,} of {len(cloud):,} points are NaN or infinite")
    if (cloud[:, :3] == cloud[0, :3]).all():
        raise InputError(f"{path} holds one place only, {len(cloud):,} times")
    return cloud.astype(np.float32)
