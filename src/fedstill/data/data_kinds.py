"""Kinds of data: what a sample is, which task it poses, and what an experiment on such data starts from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedstill.core.registry import Registry

if TYPE_CHECKING:
    from fedstill.data.bundle import Bundle
    from fedstill.data.file_sources import FromFiles


@dataclass(frozen=True)
class DataKind:
    """One kind of data. Functions import what they need when they are called."""

    task: str  # by name; data in which every point has a label poses segmentation instead
    model: str  # the default
    defaults: Mapping[str, Any]  # of an experiment, below what the user and the model set
    fewest_points: int = 1  # of a cloud
    reader: Callable[[Path], FromFiles | None] | None = None  # of files of the user's own, where it recognises them
    show: Callable[[Bundle, str | None, int, Path, str, float], None] | None = (
        None  # draws samples, in place of a sheet
    )


data_kinds: Registry[DataKind] = Registry("kind of data")
data_kinds.register("image")(DataKind("classification", "cnn", {"augmentation": "none"}))
data_kinds.register("cloud")(
    DataKind(
        "classification",
        "pointnet2-lite",
        # As in the point-cloud literature: Adam, weight decay, and clouds that are dropped, scaled and shifted.
        {
            "augmentation": "points",
            "rounds": 20,
            "training": {"epochs": 5, "optimiser": "adam", "rate": 1e-3, "weight_decay": 1e-4, "batch": 24},
        },
    )
)
