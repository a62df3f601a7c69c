"""What an audit does not know and a reader may want: what the models cost, and what the data looks like."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedstill.core.errors import InputError


@dataclass(frozen=True)
class Cost:
    """What a model of one architecture takes on a device."""

    model: str
    bytes: float  # its parameters and buffers in memory
    milliseconds: float | None = None  # for one batch; None: not measured
    device: str = ""  # where that was measured


@dataclass(frozen=True)
class Cloud:
    """A point cloud to turn; labels say what each point is of, by number, and names what the numbers mean."""

    title: str
    points: NDArray[np.float64]
    labels: NDArray[np.int64] | None = None
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Extras:
    """What is left out here is left out of the page."""

    costs: Sequence[Cost] = ()  # one a model; models without one are left out of figures about costs
    clouds: Sequence[Cloud] = ()


def make_cloud(
    title: str, points: ArrayLike, labels: ArrayLike | None = None, names: Sequence[str] = (), most: int = 2048
) -> Cloud:
    """A cloud from arrays (points x 3, and a label for each point), thinned evenly to what a page can carry."""
    array = np.asarray(points, dtype=np.float64)
    if array.ndim != 2 or array.shape[1] != 3 or not len(array):
        raise InputError(f"a cloud has points of three coordinates, and {title!r} has the shape {array.shape}")
    if not np.isfinite(array).all():
        raise InputError(f"the cloud {title!r} has coordinates that are not finite")
    chosen = np.linspace(0, len(array) - 1, min(most, len(array))).round().astype(int)
    if labels is None:
        return Cloud(title, array[chosen])
    marks = np.asarray(labels, dtype=np.int64)
    if marks.shape != (len(array),):
        raise InputError(f"the cloud {title!r} has {len(array)} points and labels of the shape {marks.shape}")
    return Cloud(title, array[chosen], marks[chosen], tuple(names))
