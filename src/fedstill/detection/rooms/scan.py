"""Simulated depth-camera scans of a room: visible surfaces only, with noise that grows with distance, and holes.

Cameras stand at one to three positions near the walls, at the height of a robot's mast or a person's hand. Rays are
spread evenly over their images, so near surfaces have more points than far ones. There are no returns from windows,
from too near or too far, from most surfaces at a grazing angle, from a few random blots (dark or shiny surfaces), nor
from the ceiling, which cameras that look down hardly see and data sets of rooms mostly lack.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedstill.detection.rooms.footprints import Floats, Rectangles, joined, overlap
from fedstill.detection.rooms.rays import CEILING, WINDOW, cast
from fedstill.detection.rooms.room_layout import Room

Ints = NDArray[np.int64]
Rng = np.random.Generator

_CAMERAS = (0.2, 0.4, 0.4)  # probabilities of one, two and three cameras
_WIDTH, _HEIGHT = np.tan(np.radians([48.0, 34.0]))  # half the image at distance 1
_NEAREST, _FARTHEST = 0.5, 6.5  # metres
_LOST = 0.02  # fraction of returns lost at random
_BLOTS = 5
# Powers of the plastic number: their multiples fill a square evenly, for any number of points.
_EVEN = np.array([1 / 1.32471795724, 1 / 1.32471795724**2])


@dataclass(frozen=True)
class RoomScan:
    """Points in the frame of the room, in random order, and the object each lies on (negative: the room itself)."""

    points: Floats
    owner: Ints


@dataclass(frozen=True)
class Camera:
    """A position, and an orthonormal frame: right, up, forwards."""

    place: Floats
    frame: Floats  # rows


def deviation(distance: Floats) -> Floats:
    """Standard deviation of a depth, in metres.

    1.2 mm at 0.4 m, growing with the square of the distance beyond, as measured by Nguyen, Izadi and Lovell, "Modeling
    Kinect sensor noise for improved 3D reconstruction and tracking" (2012); constant beyond 4 m.
    """
    return 0.0012 + 0.0019 * (np.clip(distance, 0.4, 4.0) - 0.4) ** 2


def scan(room: Room, points: int, rng: Rng, noise: float = 1.0) -> RoomScan:
    """This many points of a room; `noise` multiplies the standard deviation of depths."""
    cameras = place_cameras(room, rng)
    clouds: list[Floats] = []
    owners: list[Ints] = []
    missing = points
    while missing > 0:
        rays = int(np.ceil(1.45 * missing / len(cameras))) + 32
        for camera in cameras:
            cloud, owner = _shoot(room, camera, rays, rng, noise)
            clouds.append(cloud)
            owners.append(owner)
            missing -= len(cloud)
    chosen = rng.permutation(sum(map(len, clouds)))[:points]
    return RoomScan(np.concatenate(clouds)[chosen], np.concatenate(owners)[chosen])


def place_cameras(room: Room, rng: Rng) -> list[Camera]:
    """Cameras near the walls, not inside objects, looking near the middle; each as far from the others as possible."""
    count = int(rng.choice(len(_CAMERAS), p=_CAMERAS)) + 1
    tries = 48
    wall = rng.integers(0, 4, tries)
    along, deep = rng.uniform(-0.95, 0.95, tries), rng.uniform(0.8, 0.97, tries)
    x = np.where(wall % 2 == 0, (wall - 1) * deep, along)
    y = np.where(wall % 2 == 0, along, (wall - 2) * deep)
    places = np.column_stack([x, y]) * (room.size[:2] / 2 - 0.1)
    heights = rng.uniform(1.4, 2.1, tries)
    targets = np.column_stack([rng.normal(0.0, 0.12, (tries, 2)) * room.size[:2], rng.uniform(0.2, 0.6, tries)])
    spots = Rectangles(places, np.full((tries, 2), 0.3), np.zeros(tries))
    things = joined([thing.footprint() for thing in room.things])
    tops = np.array([thing.level + thing.piece.size[2] for thing in room.things])
    free = ~(overlap(spots, things) & (tops > 1.1)).any(axis=1)
    left = np.flatnonzero(free) if free.any() else np.arange(tries)
    chosen = [int(left[0])]
    while len(chosen) < count:
        gaps = np.linalg.norm(places[left, None] - places[chosen], axis=2).min(axis=1)
        chosen.append(int(left[gaps.argmax()]))
    return [_aimed(np.array([*places[n], heights[n]]), targets[n]) for n in chosen]


def _aimed(place: Floats, target: Floats) -> Camera:
    forwards = (target - place) / np.linalg.norm(target - place)
    right = np.array([forwards[1], -forwards[0], 0.0])
    right /= np.linalg.norm(right)
    return Camera(place, np.stack([right, np.cross(right, forwards), forwards]))


def _shoot(room: Room, camera: Camera, rays: int, rng: Rng, noise: float) -> tuple[Floats, Ints]:
    """The returns of this many rays."""
    picture = rng.random(2) + np.arange(rays)[:, None] * _EVEN + rng.normal(0.0, 0.3 / np.sqrt(rays), (rays, 2))
    picture = picture % 1.0 * 2.0 - 1.0
    ends = np.column_stack([picture * [_WIDTH, _HEIGHT], np.ones(rays)])
    length = np.linalg.norm(ends, axis=1)
    directions = ends @ camera.frame / length[:, None]
    hits = cast(camera.place, directions, room)
    blots = rng.uniform(-1.0, 1.0, (_BLOTS, 2))
    sizes = rng.uniform(0.02, 0.09, _BLOTS)
    blotted = (((picture[:, None] - blots) ** 2).sum(axis=2) < sizes**2).any(axis=1)
    kept = rng.random(rays) < np.clip((hits.cosine - 0.04) / 0.16, 0.0, 1.0) * (1.0 - _LOST)
    kept &= (hits.owner != CEILING) & (hits.owner != WINDOW) & ~blotted
    kept &= (hits.distance > _NEAREST) & (hits.distance < _FARTHEST)
    # A camera measures depth, so its error is along the ray.
    depth = hits.distance / length
    error = rng.normal(0.0, 1.0, rays) * noise * deviation(depth) * length
    cloud = camera.place + (hits.distance + error)[:, None] * directions
    return cloud[kept], hits.owner[kept]
