"""One scan of a room, a hall or a street from one file, in any supported format."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedstill.core.errors import InputError
from fedstill.data.readers import depth_images, points
from fedstill.data.readers.las import read_las
from fedstill.data.readers.pcd import read_pcd
from fedstill.data.readers.point_colours import no_colours
from fedstill.data.readers.raw import content

Floats = NDArray[np.float64]

KITTI = ".bin"
_READERS = {".pcd": read_pcd, ".las": read_las, ".laz": read_las, depth_images.SUFFIX: depth_images.read_depth}
SUFFIXES = (".npz", *points.SUFFIXES, ".pcd", ".las", ".laz", KITTI, depth_images.SUFFIX)
FARTHEST = 1e5  # metres: beyond, single precision is coarser than a centimetre


def read_scan(path: Path, most: int, key: str, notes: list[str] | None = None, colour: bool = False) -> points.Cloud:
    """The points of a scan, in metres: of a mesh or a table at most so many, drawn from a stream named by `key`.

    With `notes`, a few points that are not finite are left out. With `colour` there are six columns, the colours last;
    a scan without colours is refused.
    """
    suffix = path.suffix.lower()
    if suffix == ".npz":
        return points.read_archive(path, notes, colour)
    if suffix in points.SUFFIXES:
        return points.read_shape(path, most, key, notes, colour)
    if suffix not in SUFFIXES:
        raise InputError(f"{path} is no cloud: give {', '.join(SUFFIXES)}")
    if suffix == KITTI and colour:
        raise no_colours(path)
    found = read_lidar(path)[:, :3] if suffix == KITTI else _READERS[suffix](path, colour)
    if found.size and np.abs(found[np.isfinite(found)]).max(initial=0.0) > FARTHEST:
        raise InputError(
            f"{path} has coordinates beyond {FARTHEST / 1000:g} km: subtract an origin near the scan from them"
        )
    return points.sound(found, path, notes)


def read_lidar(path: Path) -> Floats:
    """The points of KITTI's format (points, 4): x forward, y left, z up in metres, and reflectance, as float32."""
    data = content(path)
    if len(data) % 16:
        raise InputError(f"{path} is no scan of KITTI, or incomplete: {len(data):,} bytes are no multiple of 16")
    return np.frombuffer(data, "<f4").reshape(-1, 4).astype(np.float64)


def is_scan(path: Path) -> bool:
    """Whether a file in a folder is meant as a scan: images only with a camera, and if they hold depths."""
    if not path.is_file() or path.suffix.lower() not in SUFFIXES:
        return False
    if path.suffix.lower() != depth_images.SUFFIX:
        return True
    return not depth_images.is_colour_image(path) and depth_images.camera_file(path) is not None
