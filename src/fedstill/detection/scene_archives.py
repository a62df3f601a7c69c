"""Scenes in .npz files, one each: `points`, `boxes`, `labels`, and the `classes` that labels refer to.

Points are (points, 3 or more), boxes (boxes, 7) as everywhere: centre, full sizes and heading, in metres. A scene
without objects has empty boxes and labels. Files may name different classes: their union is the list of classes of the
data set, in order of appearance. Scans with boxes beside them (`labelled_scans.py`) may be among the files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedstill.core.errors import InputError
from fedstill.core.streams import Streams
from fedstill.data.clouds import sampled
from fedstill.data.readers import npz
from fedstill.data.readers.raw import Array, FileFindings
from fedstill.detection.labelled_scans import read_labelled_scan
from fedstill.detection.scenes import Scene, Scenes, check, stack
from fedstill.detection.votenet import POINTS

_WANTED = ("points", "boxes", "labels", "classes")


def is_scene_archive(path: Path) -> bool:
    """Whether an .npz file is one scene with boxes; False if it cannot be opened."""
    try:
        with npz.opened(path) as archive:
            return {"points", "boxes"} <= set(archive.files)
    except InputError:
        return False


def read_archives(parts: dict[str, Sequence[Path]], found: FileFindings, points: int = POINTS) -> dict[str, Scenes]:
    """The scenes of files by split, with this many points each, or as many as the largest has if that is fewer.

    A scan with more points is subsampled as soon as it is read, to bound memory. Problems with a file are added to the
    findings, and the file is left out.
    """
    scenes: dict[str, list[Scene]] = {part: [] for part in parts}
    lists: list[tuple[str, ...]] = []
    for part, paths in parts.items():
        for path in paths:
            with found.collecting():
                scene, names = _read(path) if path.suffix.lower() == ".npz" else read_labelled_scan(path, points)
                check(scene, names)
                scenes[part].append(_sampled(scene, points) if len(scene.points) >= points else scene)
                lists.append(names)
    classes = tuple(dict.fromkeys(name for names in lists for name in names))
    if len(set(lists)) > 1:
        found.notes.append(f"files name different classes: together they are {len(classes)}")
    of = iter(lists)
    count = max((len(scene.points) for every in scenes.values() for scene in every), default=points)
    splits: dict[str, Scenes] = {}
    for part, every in scenes.items():
        alike = (scene if len(scene.points) == points else _sampled(scene, count) for scene in every)
        splits[part] = stack([_counted(scene, next(of), classes) for scene in alike], classes)
    return splits


def _sampled(scene: Scene, points: int) -> Scene:
    draws = Streams(0).draw("scene points", scene.name)
    return replace(scene, points=sampled(scene.points, points, draws, Path(scene.where)))


def _counted(scene: Scene, names: tuple[str, ...], classes: tuple[str, ...]) -> Scene:
    """The scene with its labels renumbered by the classes of all files."""
    numbers = np.array([classes.index(name) for name in names], np.int64)
    return replace(scene, classes=numbers[scene.classes])


def _read(path: Path) -> tuple[Scene, tuple[str, ...]]:
    with npz.opened(path) as archive:
        cloud, boxes, labels, classes = (npz.array(archive, name, path) for name in _WANTED)
    names = tuple(str(name) for name in classes.reshape(-1).tolist())
    if len(set(names)) < len(names):
        raise InputError(f"{path} names a class twice: {', '.join(names)}")
    cloud, boxes = (_numbers(array, name, path) for name, array in (("points", cloud), ("boxes", boxes)))
    if cloud.ndim != 2 or cloud.shape[1] < 3:
        raise InputError(f"{path}: a cloud must be (points, 3 or more), not {cloud.shape}")
    labels = labels.reshape(-1)
    if labels.size and labels.dtype.kind not in "iu":
        raise InputError(f"{path}: labels must be whole numbers, not {labels.dtype}")
    boxes = boxes if boxes.size else np.zeros((0, 7))  # whatever shape a scene without boxes was written with
    return Scene(cloud[:, :3], boxes, labels.astype(np.int64), str(path), name=path.stem), names


def _numbers(array: Array, name: str, path: Path) -> Array:
    if array.dtype.kind not in "fiu":
        raise InputError(f"{path}: {name} must be numbers, not {array.dtype}")
    return array.astype(np.float64)
