"""Depth images of RGB-D cameras, unprojected: a 16-bit .png, and the camera's numbers in a .json file.

    room.png, room.camera.json      the camera of one image
    room.png, camera.json           or of all images in the folder
    room.png, room.colour.jpg       its colours, pixel by pixel (.jpg, .jpeg or .png), read where they are asked for

`{"fx": 525.0, "fy": 525.0, "cx": 319.5, "cy": 239.5, "scale": 1000}`: focal lengths and principal point in pixels, and
the depth values of one metre; optionally `width` and `height`, which are then checked, and `pose`, a 4 x 4 matrix from
the camera's coordinates (x right, y down, z forward) to those of the room (z up). Without a pose the camera is level at
the origin and looks along +y.
"""

from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedstill.core.errors import InputError
from fedstill.core.files import parse_json
from fedstill.data.readers.pictures import decode
from fedstill.data.readers.point_colours import with_colours
from fedstill.data.readers.raw import content

Floats = NDArray[np.float64]

SUFFIX, CAMERA, COLOUR = ".png", "camera.json", ".colour"
_COLOUR_SUFFIXES = (".jpg", ".jpeg", ".png")
_NUMBERS = ("fx", "fy", "cx", "cy", "scale")
_LEVEL = np.array([[1.0, 0, 0, 0], [0, 0, 1, 0], [0, -1, 0, 0], [0, 0, 0, 1]])


@dataclass(frozen=True)
class DepthCamera:
    """Intrinsics in pixels, depth values of one metre, and the pose."""

    fx: float
    fy: float
    cx: float
    cy: float
    scale: float
    pose: Floats

    def unproject(self, depth: Floats) -> Floats:
        """Points (points, 3) of the pixels (height, width) that have a depth, row by row."""
        rows, columns = np.nonzero(depth > 0)
        far = depth[rows, columns] / self.scale
        seen = np.stack([(columns - self.cx) / self.fx * far, (rows - self.cy) / self.fy * far, far], axis=1)
        return seen @ self.pose[:3, :3].T + self.pose[:3, 3]


def camera_file(image: Path) -> Path | None:
    """Where the camera of an image is described."""
    places = (image.with_name(f"{image.stem}.{CAMERA}"), image.with_name(CAMERA))
    return next((place for place in places if place.is_file()), None)


def is_colour_image(path: Path) -> bool:
    """Whether an image is meant as the colours of a depth image beside it."""
    return path.stem.endswith(COLOUR)


def read_depth(path: Path, colour: bool = False) -> Floats:
    """The points (points, 3) of a depth image, in the room's coordinates; with `colour`, (points, 6)."""
    depth = _depths(path)
    where = camera_file(path)
    if where is None:
        raise InputError(
            f"{path} is an image without a camera: write {path.stem}.{CAMERA} beside it with fx, fy, cx, cy and scale"
        )
    camera = read_camera(where, depth.shape)
    points = camera.unproject(depth)
    if not len(points):
        raise InputError(f"{path} has no pixel with a depth above 0")
    return with_colours(points, _colours(path, depth.shape)[depth > 0], path) if colour else points


def _colours(image: Path, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """The colours (height, width, 3) of a depth image of this height and width, from the image beside it."""
    beside = [image.with_name(f"{image.stem}{COLOUR}{suffix}") for suffix in _COLOUR_SUFFIXES]
    found = next((place for place in beside if place.is_file()), None)
    if found is None:
        raise InputError(
            f"{image} has no colours of points: write {beside[0].name} beside it, of the same size, or leave colour out"
            " of the features"
        )
    colours = decode(found, "RGB")
    if colours.shape[:2] != shape:
        (height, width), (tall, wide) = shape, colours.shape[:2]
        raise InputError(f"{found} has {wide} x {tall} pixels, and {image.name} {width} x {height}: give both one size")
    return colours


def read_camera(path: Path, shape: tuple[int, ...]) -> DepthCamera:
    """A camera whose numbers are possible for an image of this height and width."""
    try:
        given = parse_json(content(path))
    except ValueError as error:
        raise InputError(f"{path} is no JSON file ({error})") from None
    if not isinstance(given, dict):
        raise InputError(f"{path} should hold an object with {', '.join(_NUMBERS)}")
    numbers = {name: _number(given, name, path) for name in _NUMBERS}
    for name in ("fx", "fy", "scale"):
        if numbers[name] <= 0:
            raise InputError(f"{path}: {name} must be above 0, not {numbers[name]:g}")
    height, width = shape
    for name, side in (("width", width), ("height", height)):
        if name in given and given[name] != side:
            raise InputError(f"{path} is for images of {name} {given[name]}, and this one has {side}")
    if not (0 <= numbers["cx"] <= width and 0 <= numbers["cy"] <= height):
        raise InputError(
            f"{path}: the principal point {numbers['cx']:g}, {numbers['cy']:g} is outside the image of {width} x"
            f" {height} pixels: give cx and cy in pixels of this image"
        )
    return DepthCamera(**numbers, pose=_pose(given.get("pose"), path))


def _number(given: dict[str, Any], name: str, path: Path) -> float:
    value = given.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not np.isfinite(value):
        raise InputError(f"{path} needs a number {name!r}, not {value!r}")
    return float(value)


def _pose(given: Any, path: Path) -> Floats:
    if given is None:
        return _LEVEL
    try:
        pose = np.asarray(given, np.float64)
    except (ValueError, TypeError):
        pose = np.zeros(0)
    if pose.shape != (4, 4) or not np.isfinite(pose).all() or abs(abs(np.linalg.det(pose[:3, :3])) - 1) > 1e-2:
        raise InputError(f"{path}: pose must be a 4 x 4 matrix of a rotation and a translation in metres")
    return pose


def _depths(path: Path) -> Floats:
    """The values (height, width) of an image with one channel of 16 bits."""
    from PIL import Image, UnidentifiedImageError

    data = content(path)
    try:
        with Image.open(BytesIO(data)) as image:
            image.load()
            mode, values = image.mode, np.asarray(image)
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise InputError(f"{path} is no image that can be read ({' '.join(str(error).split())})") from None
    if not mode.startswith("I"):
        raise InputError(f"{path} is no depth image: it needs one channel of 16 bits, and its mode is {mode}")
    return values.astype(np.float64)
