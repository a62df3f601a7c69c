"""Clouds as seen from somewhere: turned to the viewer, and shaded as if they were surfaces."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedstill.core.errors import InputError

Floats = NDArray[np.float64]

# Towards the viewer, and upwards on paper; z is up in space.
VIEWS: dict[str, tuple[tuple[float, float, float], tuple[float, float, float]]] = {
    "above": ((0, 0, 1), (0, 1, 0)),
    "front": ((0, 1, 0), (0, 0, 1)),
    "side": ((1, 0, 0), (0, 0, 1)),
    "corner": ((0.68, 0.75, 0.45), (0, 0, 1)),
}
_LIGHT = np.array([-0.45, 0.55, 0.70])  # over the viewer's left shoulder: right, up, towards the viewer
_NEIGHBOURS = 12
_VOTERS = 7


def upright(cloud: NDArray[np.floating], up: str, turn: float = 0.0) -> Floats:
    """The cloud with its up axis turned to z, and then turned about it by so many degrees.

    >>> upright(np.array([[0.0, 1.0, 0.0]]), "y").tolist()
    [[0.0, 0.0, 1.0]]
    """
    x, y, z = np.asarray(cloud, np.float64).T + 0.0
    turned = {"z": (x, y, z), "y": (x, 0.0 - z, y), "x": (y, z, x)}
    if up not in turned:
        raise InputError(f"--up must be x, y or z, not {up!r}")
    right, ahead, top = turned[up]
    cosine, sine = np.cos(np.radians(turn)), np.sin(np.radians(turn))
    return np.column_stack([cosine * right - sine * ahead, sine * right + cosine * ahead, top])


def normals_and_spacing(cloud: Floats) -> tuple[Floats, float]:
    """The direction in which each point's surroundings are flattest (its sign means nothing), and how far apart
    points are."""
    from sklearn.neighbors import NearestNeighbors  # here, because it takes a second that few commands need

    count = min(_NEIGHBOURS, len(cloud))
    distances, near = NearestNeighbors(n_neighbors=count).fit(cloud).kneighbors(cloud)
    patches = cloud[near] - cloud[near].mean(axis=1, keepdims=True)
    flattest = np.linalg.eigh(patches.transpose(0, 2, 1) @ patches)[1][:, :, 0]
    # Neighbours vote, since thin walls and few points make single patches unsure; outer products have no sign.
    votes = flattest[:, :, None] * flattest[:, None, :]
    axes = np.linalg.eigh(votes[near[:, :_VOTERS]].mean(axis=1))[1][:, :, 2]
    spacing = float(np.median(distances[:, min(4, count - 1)]))
    return axes, spacing


def seen(cloud: Floats, normals: Floats, view: str) -> tuple[Floats, Floats, Floats]:
    """Positions on paper (points, 2), depth (larger is nearer), and light from 0 to 1."""
    towards, top = (np.array(axis, float) for axis in VIEWS[view])
    towards /= np.linalg.norm(towards)
    right = np.cross(top, towards)
    right /= np.linalg.norm(right)
    frame = np.stack([right, np.cross(towards, right), towards])
    turned, facing = cloud @ frame.T, normals @ frame.T
    facing *= np.where(facing[:, 2:] < 0, -1.0, 1.0)  # what is seen of a surface faces the viewer
    light = np.clip(facing @ (_LIGHT / np.linalg.norm(_LIGHT)), 0, 1)
    # Height helps where flat things have one light everywhere.
    return turned[:, :2], turned[:, 2], np.clip(0.08 + 0.74 * light + 0.18 * (cloud[:, 2] + 1) / 2, 0, 1)


def lit(cloud: Floats, normals: Floats) -> Floats:
    """Light from 0 to 1 for clouds that will be turned: it comes from above, and surfaces face away from the middle."""
    facing = normals * np.where((normals * cloud).sum(axis=1, keepdims=True) < 0, -1.0, 1.0)
    lamp = np.array([0.45, 0.35, 0.82])
    light: Floats = np.clip(0.06 + 0.47 * (1 + facing @ lamp), 0, 1)
    return light
