"""Kinds of data: the form of a sample, its task, and the defaults of an experiment on such data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedstill.core.registry import Registry

if TYPE_CHECKING:
    from fedstill.data.bundle import Bundle
    from fedstill.data.file_sources import FromFiles
    from fedstill.data.layout import Samples
    from fedstill.data.readers.raw import FileFindings


@dataclass(frozen=True)
class DataKind:
    """One kind of data. Its functions import what they need when they are called."""

    task: str  # by name; data with a label for every point uses segmentation instead
    model: str  # the default
    defaults: Mapping[str, Any]  # of an experiment, overridden by the user and by the model
    points: bool = False  # whether samples are clouds of points, of which fewer can be taken
    fewest_points: int = 1  # of a cloud
    reader: Callable[[Path], FromFiles | None] | None = None  # for the user's own files, if it recognises them
    show: Callable[[Bundle, str | None, int, Path, str, float], None] | None = (
        None  # draws samples, instead of a contact sheet
    )
    find_doubts: Callable[[Mapping[str, Samples], FileFindings], None] | None = None  # of `data check`, by split
    with_features: Callable[[Bundle, tuple[str, ...]], Bundle] | None = None  # adds features of points, or removes none
    columns: Callable[[tuple[str, ...]], int] | None = None  # of points with such features


data_kinds: Registry[DataKind] = Registry("kind of data")
data_kinds.register("image")(DataKind("classification", "cnn", {"augmentation": "none"}))
data_kinds.register("array")(DataKind("classification", "mlp", {"augmentation": "none"}))  # numbers of any shape
data_kinds.register("signal")(DataKind("classification", "cnn1d", {"augmentation": "none"}))  # (channels, time)
data_kinds.register("cloud")(
    DataKind(
        "classification",
        "pointnet2-lite",
        points=True,
        # As in the point-cloud literature: Adam, weight decay, and augmentation by point dropout, scaling and shift.
        defaults={
            "augmentation": "points",
            "rounds": 20,
            "training": {"epochs": 5, "optimiser": "adam", "rate": 1e-3, "weight_decay": 1e-4, "batch": 24},
        },
    )
)
