"""Built-in infant heads with a part label for every point: cranium, nose, ears and others."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray

from fedstill.core.dataset import ArrayDataset
from fedstill.core.streams import Streams
from fedstill.data import heads
from fedstill.data.bundle import Bundle, Source, datasets
from fedstill.data.clouds import normalise
from fedstill.data.splits import hold_out

Bump = tuple[tuple[float, float, float], float, tuple[float, float, float]]

PARTS = ("cranium", "forehead", "face", "nose", "ears", "occiput", "nape")
PER_CLASS = 40

_CRANIUM, _FOREHEAD, _FACE, _NOSE, _EARS, _OCCIPUT, _NAPE = range(len(PARTS))
# The bumps from which the generator makes nose and ears: direction, height, widths.
NOSE: Bump = heads.FEATURES[0]
EARS: Bump = heads.FEATURES[6]
_REACH = 2.5  # radius of a bump's part, in standard deviations


def part_of(directions: heads.Floats) -> NDArray[np.int64]:
    """The part to which each direction of the undeformed head belongs.

    Directions are those before deformity and pose, so a part is the same anatomy on every head, wherever a synostosis
    has moved it. Boundaries are planes; nose and ears extend as far as their bumps.

    >>> up, front, back, left = [0, 0, 1], [0, 0.9, 0.4], [0, -1, 0], [0.95, -0.1, -0.28]
    >>> [PARTS[part] for part in part_of(np.array([up, front, back, left]))]
    ['cranium', 'forehead', 'occiput', 'ears']
    """
    _, y, z = directions.T
    part = np.full(len(directions), _CRANIUM)
    part[(y < -0.60) & (z < 0.45)] = _OCCIPUT
    part[(y > 0.45) & (z < 0.62)] = _FOREHEAD
    part[(y > 0.05) & (z < -0.12)] = _FACE
    part[(y <= 0.05) & (z < -0.38)] = _NAPE
    part[_within(directions, NOSE)] = _NOSE
    part[_within(directions, EARS)] = _EARS
    return part


def _within(directions: heads.Floats, bump: Bump) -> NDArray[np.bool_]:
    """Which directions lie on a bump or on its mirror image."""
    centre, _, widths = bump
    mirrored = np.column_stack([np.abs(directions[:, 0]), directions[:, 1:]])
    inside: NDArray[np.bool_] = (((mirrored - np.array(centre)) / widths) ** 2).sum(axis=1) < _REACH**2
    return inside


def make_head_parts(
    per_class: int = PER_CLASS, points: int = heads.POINTS, seed: int = 0
) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]:
    """Clouds, a part for every point, and the class of every head: the first heads of each class in `heads`.

    >>> clouds, labels, categories = make_head_parts(per_class=1, points=64)
    >>> labels.shape, bool((clouds == heads.make_heads(1, 64)[0]).all())
    ((4, 64), True)
    """
    streams = Streams(seed)
    count = len(heads.CLASSES) * per_class
    clouds, labels = np.empty((count, points, 3), np.float32), np.empty((count, points), np.int64)
    for row in range(count):
        name, index = heads.CLASSES[row // per_class], row % per_class
        clouds[row], labels[row] = _head(streams.draw("heads", name, index), name, points)
    return clouds, labels, np.repeat(np.arange(len(heads.CLASSES)), per_class)


def _head(rng: np.random.Generator, name: str, points: int) -> tuple[heads.Floats, NDArray[np.int64]]:
    """The same draws in the same order as `heads.head`, but with known directions."""
    shape = heads.draw_shape(rng, name)
    directions = heads.draw_directions(rng, points)
    cloud = shape(directions)
    cloud += rng.normal(0.0, heads.NOISE, cloud.shape)
    return normalise(cloud), part_of(directions)


_built_in = cache(make_head_parts)  # cached as in `heads`; `head_parts` copies


@datasets.register("head-parts")
def head_parts(source: Source) -> Bundle:
    """The parts of 160 infant heads (nose, ears, forehead, ...), a label for each of 2,048 points, built in."""
    clouds, labels, categories = (torch.from_numpy(array) for array in _built_in())
    train, test = (
        ArrayDataset(inputs=clouds[rows], labels=labels[rows], category=categories[rows])
        for rows in hold_out(categories)
    )
    return Bundle(source.name, train, test, PARTS, "cloud", (heads.POINTS, 3), categories=heads.CLASSES)
