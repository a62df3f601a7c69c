"""The four kernels compiled for the CPU; imported when first used, because numba loads slowly."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fedstill.core.jit import compiled

Array = npt.NDArray[Any]


@compiled()
def farthest_points(points: Array, samples: int) -> Array:
    """Stores each point's squared distance to the sample so far, and adds the farthest point to the sample."""
    batch, count, _ = points.shape
    chosen = np.zeros((batch, samples), np.int64)
    nearest = np.empty(count, points.dtype)
    for cloud in range(batch):
        xs, ys, zs = points[cloud, :, 0].copy(), points[cloud, :, 1].copy(), points[cloud, :, 2].copy()
        nearest[:] = np.inf
        last = 0
        for number in range(1, samples):
            x, y, z = xs[last], ys[last], zs[last]
            farthest = points.dtype.type(0)
            last = 0
            for i in range(count):
                dx, dy, dz = xs[i] - x, ys[i] - y, zs[i] - z
                distance = dx * dx + dy * dy + dz * dz
                nearest[i] = min(nearest[i], distance)
            for i in range(count):
                if nearest[i] > farthest:
                    farthest = nearest[i]
                    last = i
            if farthest == 0:  # every location is in the sample: the remaining entries stay at index 0
                break
            chosen[cloud, number] = last
    return chosen


@compiled()
def ball_query(points: Array, centres: Array, limit: float, neighbours: int) -> Array:
    """Scans the points in order and stops as soon as a ball is full."""
    batch, count, _ = points.shape
    found = np.empty((batch, centres.shape[1], neighbours), np.int64)
    bound = points.dtype.type(limit)
    for cloud in range(batch):
        for centre in range(centres.shape[1]):
            x, y, z = centres[cloud, centre]
            size, closest = 0, 0
            least = points.dtype.type(np.inf)
            for i in range(count):
                dx, dy, dz = points[cloud, i, 0] - x, points[cloud, i, 1] - y, points[cloud, i, 2] - z
                distance = dx * dx + dy * dy + dz * dz
                if distance < least:
                    least = distance
                    closest = i
                if distance <= bound:
                    found[cloud, centre, size] = i
                    size += 1
                    if size == neighbours:
                        break
            first = closest if size == 0 else found[cloud, centre, 0]
            for place in range(size, neighbours):
                found[cloud, centre, place] = first
    return found


@compiled()
def group(features: Array, index: Array) -> Array:
    """Copies rows of channels."""
    batch, centres, neighbours = index.shape
    grouped = np.empty((batch, centres, neighbours, features.shape[2]), features.dtype)
    for cloud in range(batch):
        for centre in range(centres):
            for place in range(neighbours):
                grouped[cloud, centre, place] = features[cloud, index[cloud, centre, place]]
    return grouped


@compiled()
def ungroup(gradient: Array, index: Array, count: int) -> Array:
    """Sums rows of channels, in the order of the groups."""
    batch, centres, neighbours, channels = gradient.shape
    total = np.zeros((batch, count, channels), gradient.dtype)
    for cloud in range(batch):
        for centre in range(centres):
            for place in range(neighbours):
                row = index[cloud, centre, place]
                for channel in range(channels):
                    total[cloud, row, channel] += gradient[cloud, centre, place, channel]
    return total
