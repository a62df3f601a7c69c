"""Ray casting: intersections with blocks and upright cylinders, or else with the walls of the room. All exact."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedstill.detection.rooms.room_layout import Placed, Room

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

FLOOR, WALL, CEILING, WINDOW = -1, -2, -3, -4  # what a ray hit that hit no object


@dataclass(frozen=True)
class Hits:
    """The length of each ray, what it hit (the number of an object, or part of the room), and the incidence."""

    distance: Floats
    owner: Ints
    cosine: Floats  # of the angle between ray and normal: 1 is head-on, 0 grazing


def cast(origin: Floats, directions: Floats, room: Room) -> Hits:
    """Trace rays from one position inside the room."""
    distance, owner, cosine = _shell(origin, directions, room)
    for number, thing in enumerate(room.things):
        heading = thing.heading
        turn = np.array([[np.cos(heading), -np.sin(heading), 0], [np.sin(heading), np.cos(heading), 0], [0, 0, 1]])
        start = (origin - [*thing.middle, thing.level]) @ turn
        near = _towards(start, directions @ turn[:, 0], directions @ turn[:, 1], directions[:, 2], thing)
        if not len(near):
            continue
        local = directions[near] @ turn
        reached, squarely = _meet(start, local, thing)
        closer = reached < distance[near]
        rows = near[closer]
        distance[rows], owner[rows], cosine[rows] = reached[closer], number, squarely[closer]
    return Hits(distance, owner, cosine)


def _towards(start: Floats, x: Floats, y: Floats, z: Floats, thing: Placed) -> Ints:
    """The rays that cross the tight box of an object: few, so that parts are tested for few."""
    half = thing.piece.size / 2
    enter, leave = np.zeros(len(x)), np.full(len(x), np.inf)
    for ray, position, low, high in (
        (x, start[0], -half[0], half[0]),
        (y, start[1], -half[1], half[1]),
        (z, start[2], 0.0, 2 * half[2]),
    ):
        inverse = 1.0 / _nonzero(ray)
        one, other = (low - position) * inverse, (high - position) * inverse
        np.maximum(enter, np.minimum(one, other), out=enter)
        np.minimum(leave, np.maximum(one, other), out=leave)
    return np.flatnonzero(enter <= leave)


def _meet(start: Floats, rays: Floats, thing: Placed) -> tuple[Floats, Floats]:
    """The nearest part along each ray: distance (infinite if none) and cosine."""
    best, squarely = np.full(len(rays), np.inf), np.zeros(len(rays))
    round_parts = thing.piece.round
    for solve, which in ((_blocks, ~round_parts), (_drums, round_parts)):
        if not which.any():
            continue
        distance, cosine = solve(start, rays, thing.piece.low[which], thing.piece.high[which])
        first = distance.argmin(axis=1)
        rows = np.arange(len(rays))
        reached = distance[rows, first]
        closer = reached < best
        best[closer], squarely[closer] = reached[closer], cosine[rows, first][closer]
    return best, squarely


def _blocks(start: Floats, rays: Floats, low: Floats, high: Floats) -> tuple[Floats, Floats]:
    """Rays x blocks: a ray is in a block while it is between all three pairs of faces."""
    enter, leave, cosine = np.array(-np.inf), np.array(np.inf), np.array(0.0)
    for axis, ray in enumerate(rays.T):  # numpy is slow along an axis of three
        inverse = 1.0 / _nonzero(ray)[:, None]
        one, other = (low[:, axis] - start[axis]) * inverse, (high[:, axis] - start[axis]) * inverse
        entered = np.minimum(one, other)
        cosine = np.where(entered > enter, np.abs(ray)[:, None], cosine)
        enter, leave = np.maximum(enter, entered), np.minimum(leave, np.maximum(one, other))
    return np.where((enter <= leave) & (enter > 0), enter, np.inf), cosine


def _drums(start: Floats, rays: Floats, low: Floats, high: Floats) -> tuple[Floats, Floats]:
    """Rays x upright cylinders, temporarily scaled to circles of radius 1."""
    middle, radius = (low + high)[:, :2] / 2, (high - low)[:, :2] / 2
    across = rays[:, None, :2] / radius
    offset = (start[:2] - middle) / radius
    a = np.maximum((across**2).sum(axis=2), 1e-12)
    b = (across * offset).sum(axis=2)
    root = b**2 - a * ((offset**2).sum(axis=1) - 1.0)
    crosses = root > 0
    root = np.sqrt(np.where(crosses, root, 0.0))
    inverse = 1.0 / _nonzero(rays[:, 2])[:, None]
    bottom, top = (low[:, 2] - start[2]) * inverse, (high[:, 2] - start[2]) * inverse
    side, cap = (-b - root) / a, np.minimum(bottom, top)
    enter = np.maximum(side, cap)
    leave = np.minimum((-b + root) / a, np.maximum(bottom, top))
    distance = np.where(crosses & (enter <= leave) & (enter > 0), enter, np.inf)
    normal = (offset + side[:, :, None] * across) / radius
    normal /= np.maximum(np.linalg.norm(normal, axis=2, keepdims=True), 1e-12)
    facing = np.abs((normal * rays[:, None, :2]).sum(axis=2))
    return distance, np.where(side > cap, facing, np.abs(rays[:, 2:]))


def _shell(origin: Floats, rays: Floats, room: Room) -> tuple[Floats, Ints, Floats]:
    """The intersection with the empty room."""
    low = np.array([-room.size[0] / 2, -room.size[1] / 2, 0.0])
    high = low + room.size
    rays = _nonzero(rays)
    ways = (np.where(rays > 0, high, low) - origin) / rays
    axis = ways.argmin(axis=1)
    rows = np.arange(len(rays))
    distance = ways[rows, axis]
    out = rays[rows, axis] > 0
    owner = np.where(axis == 2, np.where(out, CEILING, FLOOR), WALL)
    # Walls are numbered by the direction they face into the room: 0 is at the lowest x, 1 at the lowest y.
    wall = np.where(axis == 2, -1, axis + 2 * out)
    end = origin + distance[:, None] * rays
    for number, start, stop, sill, lintel in room.windows:
        along = end[:, 1] if int(number) % 2 == 0 else end[:, 0]
        glass = (wall == int(number)) & (along > start) & (along < stop) & (end[:, 2] > sill) & (end[:, 2] < lintel)
        owner[glass] = WINDOW
    return distance, owner, np.abs(rays[rows, axis])


def _nonzero(rays: Floats) -> Floats:
    """Avoids a division by zero for rays along a face."""
    return np.where(np.abs(rays) < 1e-12, 1e-12, rays)
