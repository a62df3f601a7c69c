"""Compiled passes over rows of channels, between the matrix products of the fast PointNet++.

Rows are read and written in pieces that fit in the cache. Loops over channels access few arrays, so that they are
vectorised; sums are in single precision over a few rows and then accumulated in double precision.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fedstill.core.jit import compiled

Array = npt.NDArray[Any]
RUN = 32
ZERO = np.float32(0)


@compiled(loose=True)
def first_layer(source: Array, offset: Array, mapped: Array, weights: Array, shift: Array, out: Array) -> None:
    """relu(mapped[source] + offset @ weights + shift): gathering and the folded first layer in one pass."""
    for r in range(len(source)):
        x, y, z = offset[r, 0], offset[r, 1], offset[r, 2]
        if len(mapped):
            j = source[r]
            for c in range(len(shift)):
                direct = x * weights[0, c] + y * weights[1, c] + z * weights[2, c]
                out[r, c] = max(mapped[j, c] + shift[c] + direct, ZERO)
        else:
            for c in range(len(shift)):
                out[r, c] = max(shift[c] + x * weights[0, c] + y * weights[1, c] + z * weights[2, c], ZERO)


@compiled(loose=True)
def spread_of_mapped(mapped: Array, mean: Array, times: Array, sums: Array, weights: Array) -> Array:
    """The sum of u (n u + 2 sums @ weights) over points, u = mapped - mean."""
    channels = len(mean)
    total, part = np.zeros(channels), np.zeros(channels, np.float32)
    for j in range(len(mapped)):
        n, x, y, z = times[j], 2 * sums[j, 0], 2 * sums[j, 1], 2 * sums[j, 2]
        for c in range(channels):
            u = mapped[j, c] - mean[c]
            part[c] += u * (n * u + x * weights[0, c] + y * weights[1, c] + z * weights[2, c])
        if j % RUN == RUN - 1:
            total += part
            part[:] = 0
    return total + part


@compiled(loose=True)
def add_moments(rows: Array, weight: Array, sums: Array, squares: Array) -> None:
    """Add weighted sums of rows and of their squares."""
    channels = rows.shape[1]
    part, part2 = np.zeros(channels, np.float32), np.zeros(channels, np.float32)
    for start in range(0, len(rows), RUN):
        for r in range(start, min(start + RUN, len(rows))):
            w = weight[r]
            for c in range(channels):
                v = w * rows[r, c]
                part[c] += v
                part2[c] += v * rows[r, c]
        sums += part
        squares += part2
        part[:] = 0
        part2[:] = 0


@compiled(loose=True)
def activate(rows: Array, scale: Array, shift: Array, out: Array) -> None:
    """relu(rows * scale + shift)."""
    for r in range(len(rows)):
        for c in range(rows.shape[1]):
            out[r, c] = max(rows[r, c] * scale[c] + shift[c], ZERO)


@compiled(loose=True)
def activate_weighted(rows: Array, scale: Array, shift: Array, root: Array, out: Array, sums: Array) -> None:
    """The same times the square root of the rows' weights; also adds the weighted sum of the activations."""
    channels = rows.shape[1]
    part = np.zeros(channels, np.float32)
    for start in range(0, len(rows), RUN):
        for r in range(start, min(start + RUN, len(rows))):
            w = root[r]
            for c in range(channels):
                out[r, c] = w * max(rows[r, c] * scale[c] + shift[c], ZERO)
            for c in range(channels):
                part[c] += w * out[r, c]
        sums += part
        part[:] = 0


@compiled(loose=True)
def pool_rows(rows: Array, starts: Array, best: Array) -> None:
    """The largest value of each channel in each group.

    Each step writes to another array than it reads from: in place, the compiler would store only values that became
    larger, and such stores are several times slower than storing all.
    """
    channels = rows.shape[1]
    top = np.empty((2, channels), np.float32)
    for g in range(len(best)):
        begin, end = starts[g] - starts[0], starts[g + 1] - starts[0]
        now = 0
        for c in range(channels):
            top[0, c] = rows[begin, c]
        for r in range(begin + 1, end):
            for c in range(channels):
                top[1 - now, c] = rows[r, c] if rows[r, c] > top[now, c] else top[now, c]
            now = 1 - now
        for c in range(channels):
            best[g, c] = top[now, c]


@compiled(loose=True)
def pool_with_places(rows: Array, starts: Array, best: Array, place: Array) -> None:
    """The same, and the row of each maximum, the first of equals."""
    channels = rows.shape[1]
    top, where = np.empty((2, channels), np.float32), np.empty((2, channels), np.int32)
    for g in range(len(best)):
        begin, end = starts[g] - starts[0], starts[g + 1] - starts[0]
        now = 0
        for c in range(channels):
            top[0, c] = rows[begin, c]
            where[0, c] = 0
        for r in range(begin + 1, end):
            number = np.int32(r - begin)
            for c in range(channels):
                larger = rows[r, c] > top[now, c]
                top[1 - now, c] = rows[r, c] if larger else top[now, c]
                where[1 - now, c] = number if larger else where[now, c]
            now = 1 - now
        for c in range(channels):
            best[g, c] = top[now, c]
            place[g, c] = where[now, c]


@compiled(loose=True)
def back_through_pool(
    direct: Array,
    place: Array,
    starts: Array,
    active: Array,
    root: Array,
    weights: Array,
    constant: Array,
    mixed: Array,
    into_weights: Array,
) -> None:
    """From gradients of pooled values to those of the second layer's activations, which overwrite `mixed`.

    `mixed` contains active @ K, the part of BatchNorm's gradient that is linear in the activations. The direct part
    goes to the row of the maximum: one row of `weights` for each pooled value.
    """
    channels = mixed.shape[1]
    for g in range(len(direct)):
        begin, end = starts[g] - starts[0], starts[g + 1] - starts[0]
        for r in range(begin, end):
            w = root[r]
            for c in range(channels):
                mixed[r, c] = -w * (mixed[r, c] + w * constant[c])
        for k in range(direct.shape[1]):
            s = direct[g, k]
            if s != 0:
                r = begin + place[g, k]
                for c in range(channels):
                    mixed[r, c] += s * weights[k, c]
                t = s / root[r]
                for c in range(channels):
                    into_weights[k, c] += t * active[r, c]


@compiled(loose=True)
def mask_and_add(gradient: Array, active: Array, rows: Array, sums: Array, products: Array) -> None:
    """Backward through ReLU, in place; adds sums of the gradient and of its product with the rows before BatchNorm."""
    channels = rows.shape[1]
    part, part2 = np.zeros(channels, np.float32), np.zeros(channels, np.float32)
    for start in range(0, len(rows), RUN):
        for r in range(start, min(start + RUN, len(rows))):
            for c in range(channels):
                gradient[r, c] = gradient[r, c] if active[r, c] > 0 else ZERO
            for c in range(channels):
                part[c] += gradient[r, c]
                part2[c] += gradient[r, c] * rows[r, c]
        sums += part
        products += part2
        part[:] = 0
        part2[:] = 0


@compiled(loose=True)
def add_products(left: Array, right: Array, sums: Array) -> None:
    """Add sums of products, channel by channel."""
    channels = left.shape[1]
    part = np.zeros(channels, np.float32)
    for start in range(0, len(left), RUN):
        for r in range(start, min(start + RUN, len(left))):
            for c in range(channels):
                part[c] += left[r, c] * right[r, c]
        sums += part
        part[:] = 0


@compiled(loose=True)
def back_through_norm(gradient: Array, rows: Array, weight: Array, scale: Array, flat: Array, slope: Array) -> None:
    """scale * gradient - weight * (flat + slope * rows), in place."""
    for r in range(len(rows)):
        w = weight[r]
        for c in range(rows.shape[1]):
            gradient[r, c] = scale[c] * gradient[r, c] - w * (flat[c] + slope[c] * rows[r, c])


@compiled(loose=True)
def back_to_sources(
    gradient: Array, active: Array, source: Array, offset: Array, sums: Array, by_source: Array
) -> None:
    """Backward through the first layer's ReLU; sums over all rows, plain (sums[3]) and times offsets, and by source."""
    channels = active.shape[1]
    part = np.zeros((4, channels), np.float32)
    for start in range(0, len(active), RUN):
        for r in range(start, min(start + RUN, len(active))):
            x, y, z = offset[r, 0], offset[r, 1], offset[r, 2]
            for c in range(channels):
                gradient[r, c] = gradient[r, c] if active[r, c] > 0 else ZERO
            for c in range(channels):
                d = gradient[r, c]
                part[0, c] += x * d
                part[1, c] += y * d
                part[2, c] += z * d
                part[3, c] += d
            if len(by_source):
                j = source[r]
                for c in range(channels):
                    by_source[j, c] += gradient[r, c]
        sums += part
        part[:] = 0


@compiled(loose=True)
def back_through_mapped(
    gradient: Array, mapped: Array, times: Array, sums: Array, weights: Array, scale: Array, flat: Array, slope: Array
) -> None:
    """scale * gradient - n * flat - slope * (n * mapped + sums @ weights) for each point below, in place."""
    for j in range(len(mapped)):
        n, x, y, z = times[j], sums[j, 0], sums[j, 1], sums[j, 2]
        for c in range(mapped.shape[1]):
            direct = x * weights[0, c] + y * weights[1, c] + z * weights[2, c]
            gradient[j, c] = scale[c] * gradient[j, c] - n * flat[c] - slope[c] * (n * mapped[j, c] + direct)
