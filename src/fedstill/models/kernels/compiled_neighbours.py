"""Nearest-neighbour search compiled for the CPU; imported when first used, because numba loads slowly."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fedstill.core.jit import compiled

Array = npt.NDArray[Any]


@compiled()
def nearest_rows(queries: Array, points: Array, count: int) -> tuple[Array, Array]:
    """Computes the distances of a query to all points channel by channel, then selects the nearest in one pass."""
    batch, rows, channels = queries.shape
    others = points.shape[1]
    values = np.empty((batch, rows, count), points.dtype)
    index = np.empty((batch, rows, count), np.int64)
    distances = np.empty(others, points.dtype)
    for cloud in range(batch):
        columns = points[cloud].T.copy()
        for row in range(rows):
            distances[:] = 0
            for channel in range(channels):
                at, column = queries[cloud, row, channel], columns[channel]
                for other in range(others):
                    difference = column[other] - at
                    distances[other] += difference * difference
            held = 0
            for other in range(others):
                distance = distances[other]
                # Strictly nearer only: of equally distant points the first is kept.
                if held == count and not distance < values[cloud, row, held - 1]:
                    continue
                place = min(held, count - 1)
                while place > 0 and distance < values[cloud, row, place - 1]:
                    values[cloud, row, place] = values[cloud, row, place - 1]
                    index[cloud, row, place] = index[cloud, row, place - 1]
                    place -= 1
                values[cloud, row, place] = distance
                index[cloud, row, place] = other
                held = min(held + 1, count)
    return values, index


@compiled()
def summaries(rows: Array, index: Array) -> tuple[Array, Array, Array, Array]:
    """Maximum, sum and sum of squares over the neighbours of each row, and the neighbour of the maximum."""
    batch, count, neighbours = index.shape
    channels = rows.shape[2]
    top, sums, squares = np.empty_like(rows), np.empty_like(rows), np.empty_like(rows)
    which = np.empty(rows.shape, np.int32)
    for cloud in range(batch):
        for row in range(count):
            best, total, square, where = top[cloud, row], sums[cloud, row], squares[cloud, row], which[cloud, row]
            for place in range(neighbours):
                neighbour = index[cloud, row, place]
                values = rows[cloud, neighbour]
                for channel in range(channels):
                    value = values[channel]
                    if place == 0:
                        best[channel], total[channel], square[channel] = value, value, value * value
                        where[channel] = neighbour
                    else:
                        total[channel] += value
                        square[channel] += value * value
                        if value > best[channel]:
                            best[channel] = value
                            where[channel] = neighbour
    return top, sums, squares, which


@compiled()
def spread(rows: Array, index: Array, which: Array, top: Array, sums: Array, squares: Array) -> Array:
    """The gradient of the rows from the gradients of `summaries`, summed in the order of the rows."""
    batch, count, neighbours = index.shape
    channels = rows.shape[2]
    gradient, doubled = np.zeros_like(rows), np.zeros_like(rows[0])
    for cloud in range(batch):
        doubled[:] = 0
        for row in range(count):
            for place in range(neighbours):
                neighbour = index[cloud, row, place]
                for channel in range(channels):
                    gradient[cloud, neighbour, channel] += sums[cloud, row, channel]
                    doubled[neighbour, channel] += squares[cloud, row, channel]
            for channel in range(channels):
                gradient[cloud, which[cloud, row, channel], channel] += top[cloud, row, channel]
        for row in range(count):
            for channel in range(channels):
                gradient[cloud, row, channel] += 2 * rows[cloud, row, channel] * doubled[row, channel]
    return gradient
