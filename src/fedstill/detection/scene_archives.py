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
from fedstill.data.readers import npz
from fedstill.data.readers.raw import FileFindings
from fedstill.detection.cloud_files import CloudFile, as_numbers, read_points
from fedstill.detection.labelled_scans import read_labelled_scan
from fedstill.detection.scenes import Scene, Scenes, check, stack_files
from fedstill.detection.votenet import POINTS

_WANTED = ("points", "boxes", "labels", "classes")


def is_scene_archive(path: Path) -> bool:
    """Whether an .npz file is one scene with boxes; False if it cannot be opened."""
    try:
        with npz.opened(path) as archive:
            return {"points", "boxes"} <= set(archive.files)
    except InputError:
        return False


def read_archives(
    parts: dict[str, Sequence[Path]], found: FileFindings, points: int | None = None
) -> dict[str, Scenes]:
    """The scenes of files by split, with this many points each, or without a number as many as the largest has.

    Points are read a second time when it is known how many, and a third time where they do not fit in memory: no more
    than one whole scan is held. Problems with a file are added to the findings, and the file is left out.
    """
    scenes: dict[str, list[Scene]] = {part: [] for part in parts}
    lists: list[tuple[str, ...]] = []
    for part, paths in parts.items():
        for path in paths:
            with found.collecting():
                scene, names, note = _read(path) if path.suffix.lower() == ".npz" else read_labelled_scan(path)
                check(scene, names)
                found.notes += [note] if note else []
                scenes[part].append(_left_in_file(scene))
                lists.append(names)
    classes = tuple(dict.fromkeys(name for names in lists for name in names))
    if len(set(lists)) > 1:
        found.notes.append(f"files name different classes: together they are {len(classes)}")
    of = iter(lists)
    largest = max((_file(scene).held for every in scenes.values() for scene in every), default=0)
    filled = min(largest, points or POINTS)
    count = largest if points is None else filled
    return {
        part: stack_files([_counted(_filled(scene, filled), next(of), classes) for scene in every], classes, count, ())
        for part, every in scenes.items()
    }


def _left_in_file(scene: Scene) -> Scene:
    file = CloudFile.of(Path(scene.where), scene.name, scene.points)
    return replace(scene, points=np.zeros((0, 3)), file=file)


def _file(scene: Scene) -> CloudFile:
    assert scene.file is not None
    return scene.file


def _filled(scene: Scene, points: int) -> Scene:
    """The scene with its cloud filled up to this many points where it has fewer."""
    return replace(scene, file=replace(_file(scene), filled=points if _file(scene).held < points else 0))


def _counted(scene: Scene, names: tuple[str, ...], classes: tuple[str, ...]) -> Scene:
    """The scene with its labels renumbered by the classes of all files."""
    numbers = np.array([classes.index(name) for name in names], np.int64)
    return replace(scene, classes=numbers[scene.classes])


def _read(path: Path) -> tuple[Scene, tuple[str, ...], str]:
    with npz.opened(path) as archive:
        _, boxes, labels, classes = (npz.array(archive, name, path) for name in _WANTED)
    names = tuple(str(name) for name in classes.reshape(-1).tolist())
    if len(set(names)) < len(names):
        raise InputError(f"{path} names a class twice: {', '.join(names)}")
    cloud, note = read_points(path)
    boxes = as_numbers(boxes, path, "boxes")
    labels = labels.reshape(-1)
    if labels.size and labels.dtype.kind not in "iu":
        raise InputError(f"{path}: labels must be whole numbers, not {labels.dtype}")
    boxes = boxes if boxes.size else np.zeros((0, 7))  # whatever shape a scene without boxes was written with
    return Scene(cloud, boxes, labels.astype(np.int64), str(path), name=path.stem), names, note
