"""All weight-independent geometry of a batch of clouds, in one compiled call."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fedstill.core.jit import compiled

Array = npt.NDArray[Any]
BLOCK = 64


@compiled()
def without_copies(cloud: Array, xs: Array, ys: Array, zs: Array, index: Array) -> int:
    """Point 0 and all points at other locations, coordinate by coordinate, with their indices; returns their number."""
    count = 0
    for i in range(len(cloud)):
        if i == 0 or cloud[i, 0] != cloud[0, 0] or cloud[i, 1] != cloud[0, 1] or cloud[i, 2] != cloud[0, 2]:
            xs[count], ys[count], zs[count] = cloud[i]
            index[count] = i
            count += 1
    return count


@compiled()
def measure(
    xs: Array, ys: Array, zs: Array, count: int, at: int, bound: Any, nearest: Array, nearer: Array, inside: Array
) -> None:
    """Distances from one point: the points in its ball, and the updated distances to the sample.

    The output is another array than the input: in place, the compiler would store only values that became smaller, and
    such stores are six times slower than storing all.
    """
    x, y, z = xs[at], ys[at], zs[at]
    for i in range(count):
        dx, dy, dz = xs[i] - x, ys[i] - y, zs[i] - z
        distance = dx * dx + dy * dy + dz * dz
        nearer[i] = distance if distance < nearest[i] else nearest[i]
        inside[i] = distance <= bound


@compiled()
def farthest(nearest: Array, count: int) -> int:
    """The lowest index of the largest distance, or -1 if all are zero.

    Distances are not negative, so their bits, read as integers, have the same order: a maximum of integers is
    vectorised, one of floats that may be NaN is not.
    """
    bits = nearest.view(np.int32)
    best, block = np.int32(0), 0
    for start in range(0, count, BLOCK):
        top = np.int32(0)
        for i in range(start, min(start + BLOCK, count)):
            top = max(top, bits[i])
        if top > best:
            best, block = top, start
    if best == 0:
        return -1
    while bits[block] != best:
        block += 1
    return block


@compiled()
def members(inside: Array, words: Array, count: int, index: Array, room: int, found: Array) -> int:
    """Positions of a ball's first members, copies of point 0 counted but not listed; returns their number.

    Bytes are read eight at a time, as most are zero, and written without a branch, since an unpredictable branch costs
    more. Copies take places in the order of the indices like any point: before the point at position p with index i
    there are i - p of them.
    """
    size = 0
    for word in range((count + 7) // 8):
        if words[word] != 0:
            for p in range(8 * word, 8 * word + 8):
                found[size] = p
                size += int(inside[p])
            if size >= room:
                size = room
                break
    if inside[0]:
        while size + index[found[size - 1]] - found[size - 1] > room:
            size -= 1
    return size


@compiled()
def build(
    points: Array, centres1: int, bound1: Any, room1: int, centres2: int, bound2: Any, room2: int
) -> tuple[Any, ...]:
    """Rows of three levels: sources, coordinates, weights and the start of each group.

    A group's rows are its distinct points. The first one found, which also pads, has all the remaining weight; the
    group of point 0 counts once for every time that sampling returned to it.
    """
    batch, total, _ = points.shape
    kind = points.dtype
    xs, ys, zs = np.empty(total, kind), np.empty(total, kind), np.empty(total, kind)
    ax, ay, az = np.empty(centres1, kind), np.empty(centres1, kind), np.empty(centres1, kind)
    nearest, nearer = np.empty(total, kind), np.empty(total, kind)
    index = np.empty(total, np.int64)
    size = max(total, centres1)
    inside, found = np.zeros((size + 7) // 8 * 8, np.uint8), np.empty(max(room1, room2) + 8, np.int64)
    words = inside.view(np.uint64)
    plain_index = np.arange(centres1)
    source1 = np.empty(batch * centres1 * min(room1, total), np.int32)
    offset1 = np.empty((len(source1), 3), kind)
    weight1 = np.empty(len(source1), kind)
    source2 = np.empty(batch * centres2 * min(room2, centres1), np.int32)
    offset2 = np.empty((len(source2), 3), kind)
    weight2 = np.empty(len(source2), kind)
    offset3 = np.empty((batch * centres2, 3), kind)
    weight3 = np.empty(len(offset3), kind)
    starts1, starts2 = np.zeros(batch * centres1 + 1, np.int64), np.zeros(batch * centres2 + 1, np.int64)
    starts3 = np.zeros(batch + 1, np.int64)
    rows1, rows2, rows3, groups1, groups2 = 0, 0, 0, 0, 0
    for cloud in range(batch):
        count = without_copies(points[cloud], xs, ys, zs, index)
        nearest[:count] = np.inf
        first_row, first_group = rows1, groups1
        inside[:] = 0
        at, taken = 0, 0
        while at >= 0 and taken < centres1:
            ax[taken], ay[taken], az[taken] = xs[at], ys[at], zs[at]
            measure(xs, ys, zs, count, at, bound1, nearest, nearer, inside)
            nearest, nearer = nearer, nearest
            kept = members(inside, words, count, index, room1, found)
            for place in range(kept):
                p = found[place]
                source1[rows1] = cloud * total + index[p]
                offset1[rows1, 0], offset1[rows1, 1], offset1[rows1, 2] = xs[p] - xs[at], ys[p] - ys[at], zs[p] - zs[at]
                weight1[rows1] = 1 if place else room1 - kept + 1
                rows1 += 1
            groups1 += 1
            starts1[groups1] = rows1
            taken += 1
            at = farthest(nearest, count)
        for row in range(first_row, starts1[first_group + 1]):
            weight1[row] *= 1 + centres1 - taken
        inside[:] = 0
        first_row, second = rows2, min(centres2, taken)
        for at in range(second):
            measure(ax, ay, az, taken, at, bound2, nearest, nearer, inside)
            kept = members(inside, words, taken, plain_index, room2, found)
            for place in range(kept):
                p = found[place]
                source2[rows2] = first_group + p
                offset2[rows2, 0], offset2[rows2, 1], offset2[rows2, 2] = ax[p] - ax[at], ay[p] - ay[at], az[p] - az[at]
                weight2[rows2] = 1 if place else room2 - kept + 1
                if at == 0:
                    weight2[rows2] *= 1 + centres2 - second
                rows2 += 1
            groups2 += 1
            starts2[groups2] = rows2
            offset3[rows3, 0], offset3[rows3, 1], offset3[rows3, 2] = ax[at], ay[at], az[at]
            weight3[rows3] = 1 if at else 1 + centres2 - second
            rows3 += 1
        starts3[cloud + 1] = rows3
    return (
        (source1[:rows1], offset1[:rows1], weight1[:rows1], starts1[: groups1 + 1]),
        (source2[:rows2], offset2[:rows2], weight2[:rows2], starts2[: groups2 + 1]),
        (np.arange(rows3).astype(np.int32), offset3[:rows3], weight3[:rows3], starts3),
    )


@compiled()
def moments(source: Array, offset: Array, weight: Array, sources: int) -> tuple[Array, Array, Array, Array]:
    """Weighted sums of coordinates over all rows and per source: the input of the first layer's statistics."""
    first, second = np.zeros(3), np.zeros((3, 3))
    times, sums = np.zeros(sources), np.zeros((sources, 3))
    for row in range(len(source)):
        mass = np.float64(weight[row])
        if sources:
            times[source[row]] += mass
        for a in range(3):
            part = mass * offset[row, a]
            first[a] += part
            if sources:
                sums[source[row], a] += part
            for b in range(3):
                second[a, b] += part * offset[row, b]
    return first, second, times, sums
