"""Features of points beside their coordinates: a scene's input has the columns x y z, [red green blue], [height].

The number of columns says which features there are, so models, files and deployments need nothing but the shape.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedstill.core.errors import InputError

FeatureName = Literal["colour", "height"]
FEATURES: tuple[FeatureName, ...] = get_args(FeatureName)  # in the order of their columns
COORDINATES = 3
_COLUMNS: dict[FeatureName, int] = {"colour": 3, "height": 1}
_LOWEST = 0.99  # per cent of the points that may be below the floor, as in VoteNet


def columns_with(features: tuple[str, ...]) -> int:
    """The number of columns of points with these features.

    >>> columns_with(()), columns_with(("height",)), columns_with(("colour", "height"))
    (3, 4, 7)
    """
    return COORDINATES + sum(_COLUMNS[name] for name in FEATURES if name in features)


_BY_COLUMNS: dict[int, tuple[FeatureName, ...]] = {
    columns_with(features): features for features in ((), ("height",), ("colour",), ("colour", "height"))
}
KNOWN_COLUMNS = frozenset(_BY_COLUMNS)


def features_of(columns: int) -> tuple[FeatureName, ...]:
    """The features of points with so many columns.

    >>> features_of(6), features_of(7)
    (('colour',), ('colour', 'height'))
    """
    if columns not in _BY_COLUMNS:
        known = ", ".join(f"{number} ({_named(features)})" for number, features in sorted(_BY_COLUMNS.items()))
        raise InputError(f"points of scenes have {known} columns, not {columns}")
    return _BY_COLUMNS[columns]


def _named(features: tuple[FeatureName, ...]) -> str:
    return " and ".join(features) or "coordinates alone"


def listed_features(given: Any) -> Any:
    """Features as a list without repetition, in the order of their columns; `colour,height` is such a list as text.

    >>> listed_features("height, colour"), listed_features("")
    (('colour', 'height'), ())
    """
    listed = [name.strip() for name in given.split(",") if name.strip()] if isinstance(given, str) else given
    if not isinstance(listed, list | tuple) or any(name not in FEATURES for name in listed):
        return listed  # which is refused by its type
    return tuple(name for name in FEATURES if name in listed)


def split_columns(points: Tensor) -> tuple[Tensor, Tensor | None]:
    """Coordinates (..., 3) and features (..., columns - 3); None where there are no features."""
    if points.shape[-1] == COORDINATES:
        return points, None
    return points[..., :COORDINATES], points[..., COORDINATES:]


def heights(clouds: NDArray[np.float32]) -> NDArray[np.float32]:
    """The height of each point above the floor of its scene: (scenes, points, 3 or more) to (scenes, points, 1).

    The floor is the height below which 0.99 % of the scene's points are.

    >>> [round(float(height), 2) for height in heights(np.array([[[0, 0, 1], [0, 0, 3]]], np.float32)).flatten()]
    [-0.02, 1.98]
    """
    z = clouds[..., 2].astype(np.float64)
    floor = np.percentile(z, _LOWEST, axis=1, keepdims=True) if z.size else z[:, :1]
    return (z - floor).astype(np.float32)[..., None]


def with_height(clouds: Tensor) -> Tensor:
    """Scenes (scenes, points, columns) with the height of each point as another column."""
    return torch.cat([clouds, torch.from_numpy(heights(clouds.numpy()))], dim=-1)
