"""Scans with their boxes beside them: `room.pcd` and `room.json`, in the form that `fedstill detect --out` writes.

`{"boxes": [{"class": "chair", "centre": [x, y, z], "size": [x, y, z], "heading": 0.0}, ...]}`, in metres with z up; a
heading that is left out is 0. `"classes"` may list all classes in their order. A file of `fedstill detect` for one scan
can be corrected and used as it is.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedstill.core.errors import InputError
from fedstill.core.files import parse_json
from fedstill.data.readers.depth_images import CAMERA
from fedstill.data.readers.raw import content
from fedstill.data.readers.whole_scans import is_scan
from fedstill.detection.cloud_files import read_points
from fedstill.detection.scenes import Scene

_PARTS = {"centre": 3, "size": 3}


def labelled_scans(folder: Path) -> list[Path]:
    """The scans of a folder with a file of boxes beside them, in order of names."""
    named = {path.stem for path in folder.glob("*.json") if not path.name.endswith(CAMERA)}
    if not named:
        return []
    return sorted(path for path in folder.iterdir() if path.stem in named and path.suffix != ".npz" and is_scan(path))


def has_boxes_beside(path: Path) -> bool:
    """Whether the .json file of a scan is about boxes, rather than about a shape."""
    try:
        given = parse_json(content(path.with_suffix(".json")))
    except (ValueError, InputError):
        return False
    return isinstance(given, dict) and bool({"boxes", "scenes"} & set(given))


def read_labelled_scan(path: Path) -> tuple[Scene, tuple[str, ...], str]:
    """A scan with its boxes, the names of the classes that their numbers refer to, and a note on points left out."""
    labelled = path.with_suffix(".json")
    boxes, kinds, classes = _boxes(labelled)
    cloud, note = read_points(path)
    numbers = np.array([classes.index(kind) for kind in kinds], np.int64)
    return Scene(cloud, boxes, numbers, str(path), labelled=str(labelled), name=path.stem), classes, note


def _boxes(path: Path) -> tuple[Any, list[str], tuple[str, ...]]:
    try:
        given = parse_json(content(path))
    except ValueError as error:
        raise InputError(f"{path} is no JSON file ({error})") from None
    listed = _listed(given, path)
    rows = [_box(one, f"{path}: box {number}") for number, one in enumerate(listed)]
    kinds = [one["class"] for one in listed]
    classes = given.get("classes", sorted(set(kinds)))
    if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
        raise InputError(f"{path}: classes must be a list of names")
    if unknown := sorted(set(kinds) - set(classes)):
        raise InputError(f"{path} has a box of class {unknown[0]!r}, which is not among its classes")
    return np.array(rows, np.float64).reshape(-1, 7), kinds, tuple(dict.fromkeys(classes))


def _listed(given: Any, path: Path) -> list[dict[str, Any]]:
    """The list of boxes; in a file of `fedstill detect`, that of its one scene."""
    scenes = given.get("scenes") if isinstance(given, dict) else None
    if isinstance(scenes, list):
        if len(scenes) != 1 or not isinstance(scenes[0], dict):
            raise InputError(f"{path} has {len(scenes)} scenes: a scan needs a file of its own")
        given = scenes[0]
    boxes = given.get("boxes") if isinstance(given, dict) else None
    if not isinstance(boxes, list) or not all(isinstance(one, dict) for one in boxes):
        raise InputError(f"{path} should hold an object with a list 'boxes' of objects with class, centre and size")
    return boxes


def _box(one: dict[str, Any], where: str) -> list[float]:
    if not isinstance(one.get("class"), str) or not one["class"]:
        raise InputError(f"{where} has no class")
    numbers: list[Any] = []
    for name, count in _PARTS.items():
        part = one.get(name)
        if not isinstance(part, list) or len(part) != count:
            raise InputError(f"{where}: {name} must be {count} numbers, not {part!r}")
        numbers += part
    numbers.append(one.get("heading", 0.0))
    if not all(isinstance(number, int | float) and not isinstance(number, bool) for number in numbers):
        raise InputError(f"{where} has something that is no number")
    return [float(number) for number in numbers]
