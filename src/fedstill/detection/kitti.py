"""KITTI's object data set: scans of a laser scanner on a car, with boxes of road users.

`velodyne/%06d.bin`, `label_2/%06d.txt` and `calib/%06d.txt`, in a folder or in `training` below it, and optionally
`ImageSets/train.txt` and `val.txt`. Labels are in the coordinates of the rectified camera (x right, y down, z forward):
the centre of a box's *bottom*, its height, width and length, and `rotation_y` about the axis that points down, 0 where
the object faces right. Scenes are in the scanner's coordinates (x forward, y left, z up), in which an object that faces
right has heading -pi/2.

Only what the camera sees is labelled, so points outside its image are left out.
"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedstill.core.errors import InputError
from fedstill.core.streams import Streams
from fedstill.data.clouds import sampled
from fedstill.data.readers.raw import FileFindings, content
from fedstill.data.readers.whole_scans import read_lidar
from fedstill.detection.scenes import Scene, Scenes, check, stack

Floats = NDArray[np.float64]

CLASSES = ("Car", "Van", "Truck", "Pedestrian", "Person_sitting", "Cyclist", "Tram", "Misc")
UNLABELLED = "DontCare"
_SCANS, _LABELS, _CALIBRATION = "velodyne", "label_2", "calib"
_FIELDS = 15  # of a label; detections have a score after them
_IMAGE = (1242, 375)  # width and height in pixels, where there is no image to look at
_MATRICES = {"P2": (3, 4), "R0_rect": (3, 3), "Tr_velo_to_cam": (3, 4)}


def kitti_home(folder: Path) -> Path | None:
    """The folder with scans, labels and calibration: this one, or `training` below it."""
    for place in (folder, folder / "training"):
        if all((place / name).is_dir() for name in (_SCANS, _LABELS, _CALIBRATION)):
            return place
    return None


def frames(home: Path) -> list[str]:
    return sorted(path.stem for path in (home / _SCANS).glob("*.bin"))


def read_kitti(
    home: Path, points: int, names: list[str] | None = None, found: FileFindings | None = None, seed: int = 0
) -> Scenes:
    """The frames of a folder, or the named ones, as scenes of this many points; oriented boxes of eight classes.

    Problems with a frame are added to `found`, if given, and the frame is left out.
    """
    scenes: list[Scene] = []
    for name in frames(home) if names is None else names:
        with nullcontext() if found is None else found.collecting():
            scan, labels = home / _SCANS / f"{name}.bin", home / _LABELS / f"{name}.txt"
            calibration = Calibration(home / _CALIBRATION / f"{name}.txt")
            boxes, classes = read_labels(labels, calibration)
            cloud = read_lidar(scan)[:, :3]
            if not np.isfinite(cloud).all():
                raise InputError(f"{scan} has points that are not finite numbers")
            seen = cloud[calibration.visible(cloud, _image_size(home, name))]
            some = sampled(seen, points, Streams(seed).draw("scene points", name), scan)
            scene = Scene(some, boxes, classes, str(scan), labelled=str(labels), name=name)
            check(scene, CLASSES)
            scenes.append(scene)
    return stack(scenes, CLASSES)


class Calibration:
    """The matrices of one frame: from the scanner to the rectified camera, and to pixels of the left colour camera."""

    def __init__(self, path: Path) -> None:
        lines = dict(line.split(":", 1) for line in _text(path).splitlines() if ":" in line)
        matrices = {name: _matrix(lines, name, path) for name in _MATRICES}
        self.pixels = matrices["P2"]
        rectified, moved = np.eye(4), np.eye(4)
        rectified[:3, :3], moved[:3] = matrices["R0_rect"], matrices["Tr_velo_to_cam"]
        self.to_camera: Floats = rectified @ moved
        if abs(abs(np.linalg.det(self.to_camera[:3, :3])) - 1) > 1e-2:
            raise InputError(f"{path}: R0_rect and Tr_velo_to_cam are no rotations: fetch it again")
        self.to_scanner: Floats = np.linalg.inv(self.to_camera).astype(np.float64)

    def visible(self, cloud: Floats, size: tuple[int, int]) -> NDArray[np.bool_]:
        """Which points are in the image of the camera."""
        seen = cloud @ self.to_camera[:3, :3].T + self.to_camera[:3, 3]
        places = np.column_stack([seen, np.ones(len(seen))]) @ self.pixels.T
        ahead = (seen[:, 2] > 0) & (places[:, 2] > 0)
        across = places[:, :2] / np.where(ahead, places[:, 2], 1.0)[:, None]
        inside: NDArray[np.bool_] = ahead & ((across >= 0) & (across < size)).all(axis=1)
        return inside

    def boxes(self, labels: Floats) -> Floats:
        """Boxes (boxes, 7) in the scanner's coordinates of labels: height, width, length, x, y, z, rotation_y."""
        height, width, length, x, y, z, turn = labels.T
        middle = np.stack([x, y - height / 2, z], axis=1)  # y points down
        centre = middle @ self.to_scanner[:3, :3].T + self.to_scanner[:3, 3]
        ahead = np.stack([np.cos(turn), np.zeros_like(turn), -np.sin(turn)], axis=1) @ self.to_scanner[:3, :3].T
        return np.column_stack([centre, length, width, height, np.arctan2(ahead[:, 1], ahead[:, 0])])


def read_labels(path: Path, calibration: Calibration) -> tuple[Floats, NDArray[np.int64]]:
    """The boxes of a frame and their classes, without regions that nobody labelled."""
    rows, kinds = [], []
    for number, line in enumerate(_text(path).splitlines(), start=1):
        kind, *words = line.split() or [UNLABELLED]
        if kind == UNLABELLED:
            continue
        if kind not in CLASSES:
            raise InputError(f"{path}, line {number}: unknown class {kind!r}, known are {', '.join(CLASSES)}")
        try:
            numbers = [float(word) for word in words]
        except ValueError:
            numbers = []
        if len(numbers) < _FIELDS - 1:
            raise InputError(f"{path}, line {number}: a label is a class and {_FIELDS - 1} numbers")
        rows.append(numbers[7:14])
        kinds.append(CLASSES.index(kind))
    return calibration.boxes(np.array(rows, np.float64).reshape(-1, 7)), np.array(kinds, np.int64)


def _text(path: Path) -> str:
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    if not path.stat().st_size and path.parent.name == _LABELS:  # a frame without objects
        return ""
    return content(path).decode("utf-8", errors="replace")


def _matrix(lines: dict[str, str], name: str, path: Path) -> Floats:
    shape = _MATRICES[name]
    try:
        numbers = np.array([float(word) for word in lines.get(name, "").split()])
    except ValueError:
        numbers = np.zeros(0)
    if numbers.size != shape[0] * shape[1] or not np.isfinite(numbers).all():
        raise InputError(f"{path} needs a line {name}: with {shape[0] * shape[1]} numbers")
    return numbers.reshape(shape)


def _image_size(home: Path, name: str) -> tuple[int, int]:
    """Width and height of the frame's image, or the usual ones where it is not here."""
    image = home / "image_2" / f"{name}.png"
    if not image.is_file():
        return _IMAGE
    from fedstill.data.readers.pictures import header

    return header(image)[0]
