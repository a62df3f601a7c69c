"""Detections of a run's detector in the user's own scans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from fedstill.core.errors import InputError
from fedstill.core.hardware import one_thread
from fedstill.core.numbers import listed
from fedstill.data.readers.whole_scans import KITTI, SUFFIXES, is_scan
from fedstill.data.single_input import read_cloud
from fedstill.detection.detection_task import Detection, Detections
from fedstill.detection.detector_file import LEAST
from fedstill.detection.point_features import features_of, split_columns, with_height
from fedstill.detection.scene_doubts import LARGEST, SMALLEST
from fedstill.runtime.exported_file import ExportedFile
from fedstill.runtime.prediction import opened
from fedstill.runtime.result import Run


@dataclass(frozen=True)
class Scan:
    """A file, the points of it that the detector received, and the detections, by descending score."""

    file: Path
    points: Tensor  # (points, 3), or with the features that the detector reads beside coordinates
    found: Detections
    classes: tuple[str, ...]  # of the detector
    warning: str = ""

    def sure(self, least: float = LEAST) -> list[dict[str, Any]]:
        """The detections with at least this score: class, score, centre, size and heading of each box."""
        rows = zip(self.found.boxes.tolist(), self.found.scores.tolist(), self.found.classes.tolist(), strict=True)
        return [
            {
                "class": self.classes[kind],
                "score": round(score, 4),
                "centre": _rounded(box[:3]),
                "size": _rounded(box[3:6]),
                "heading": round(box[6], 4) + 0.0,  # never -0.0
            }
            for box, score, kind in rows
            if score >= least
        ]


def detect(
    run: str | Path | Run | ExportedFile,
    files: str | Path | Sequence[str | Path],
    *,
    which: str = "last",
    client: int | None = None,
    architecture: str | None = None,
    device: str = "cpu",
    plugins: Sequence[str | Path] = (),
) -> list[Scan]:
    """Detect objects in the user's own scans, in metres with z up, with a run's detector or one exported as ONNX.

    Folders mean all their files. Nothing is computed before all files have been read.

    >>> import fedstill, numpy as np
    >>> folder = getfixture("tmp_path")
    >>> cube = np.stack(np.meshgrid(*[np.linspace(0, 1, 8)] * 3), axis=-1).reshape(-1, 3)
    >>> for split in ("train", "test"):
    ...     (folder / split).mkdir()
    ...     for name in ("a", "b"):
    ...         box = {"boxes": [[0.5, 0.5, 0.5, 1, 1, 1, 0]], "labels": [0], "classes": ["crate", "shelf"]}
    ...         np.savez(folder / split / name, points=cube, **box)
    >>> settings = {"model": "small-detr3d-lite", "rounds": 1, "training": {"batch": 2, "epochs": 1}}
    >>> made = fedstill.run("centralised", data=f"folder:{folder}", out=folder / "runs", **settings)
    >>> first, second = fedstill.detect(made, folder / "test")
    >>> {box["class"] for box in first.sure(least=0)} <= set(first.classes)
    True
    """
    held, named = opened(run, files, device, plugins)
    task = held.task
    if not isinstance(task, Detection):
        raise InputError(
            f"{held.path} is no detector: its model {task.architectures[0]} finds no boxes, but there is fedstill"
            " predict for what it says"
        )
    paths = scan_files(named)
    read = [_read(path, task.shape) for path in paths]
    model = held.built(which, client, architecture).to(device)
    task = replace(task, device=device)
    with one_thread():
        found = [task.detect(model, cloud.unsqueeze(0))[0] for cloud, _ in read]
    return [
        Scan(path, cloud, one, tuple(task.classes), "; ".join(filter(None, (note, size_warning(path, cloud)))))
        for path, (cloud, note), one in zip(paths, read, found, strict=True)
    ]


def _read(path: Path, shape: tuple[int, ...]) -> tuple[Tensor, str]:
    """The points of a scan with the features that a detector of this input reads, and a note."""
    features = features_of(shape[1])
    cloud, note = read_cloud(path, shape[0], "colour" in features)
    return with_height(cloud.unsqueeze(0))[0] if "height" in features else cloud, note


def scan_files(paths: Sequence[Path]) -> list[Path]:
    """The named files, and those in the named folders."""
    found = []
    for path in paths:
        if not path.is_dir():
            found.append(path)
            continue
        inside = sorted(file for file in path.iterdir() if is_scan(file))
        if not inside:
            raise InputError(f"there is no scan in the folder {path}: give files like {listed(SUFFIXES)}")
        found += inside
    return found


def size_warning(file: Path, cloud: Tensor) -> str:
    """A warning for a scan whose unit is probably not the metre; otherwise empty."""
    coordinates, _ = split_columns(cloud)
    across = float((coordinates.amax(dim=0) - coordinates.amin(dim=0)).max())
    if SMALLEST <= across <= LARGEST or file.suffix.lower() == KITTI:  # which is in metres, and reaches farther
        return ""
    size = f"{across:,.0f}" if across > LARGEST else f"{across:.2g}"
    unit = "millimetres or centimetres" if across > LARGEST else "kilometres, or scaled to a unit size"
    return (
        f"{file.name} is {size} units across, and a detector takes them for metres: is it in {unit}?"
        " Then what was found means nothing"
    )


def _rounded(values: Sequence[float]) -> list[float]:
    """Round to a millimetre."""
    return [round(value, 3) + 0.0 for value in values]
