"""Samples drawn at their places on a map, as many as have room."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.patches import Rectangle

Points = npt.NDArray[np.float64]
Pictures = npt.NDArray[np.float32]

_FEWEST, _MOST = 7.0, 30.0  # pictures that fit beside each other, for few samples and for many
_GAP, _FRAME = 0.02, 0.1  # of a picture's side, on each side: what is left free, and what is in colour


def draw_thumbnails(axes: Axes, places: Points, pictures: Pictures, colours: Sequence[str]) -> int:
    """Pictures at their places, in frames of their colours, one where several would cover each other; says how many.

    They are moved to the cells of a grid, by half a picture at most, so that more of them have room.
    """
    extent = float((places.max(axis=0) - places.min(axis=0)).max()) or 1.0
    side = extent / float(np.clip(1.4 * np.sqrt(len(places)), _FEWEST, _MOST))
    cells = in_cells(places, side)
    corners = [(column * side, row * side) for column, row in cells]
    gap, inner = _GAP * side, (_GAP + _FRAME) * side
    squares = [Rectangle((x + gap, y + gap), side - 2 * gap, side - 2 * gap) for x, y in corners]
    frames = PatchCollection(squares, linewidths=0)
    frames.set_facecolor([colours[sample] for sample in cells.values()])
    axes.add_collection(frames)
    for (x, y), sample in zip(corners, cells.values(), strict=True):
        axes.imshow(
            pictures[sample].squeeze(axis=2) if pictures.shape[3] == 1 else pictures[sample],
            extent=(x + inner, x + side - inner, y + inner, y + side - inner),
            cmap="gray",
            vmin=0.0,
            vmax=1.0,
            interpolation="nearest",
            zorder=2,
        )
    axes.use_sticky_edges = False  # images would leave no margin
    axes.autoscale_view()
    return len(cells)


def in_cells(places: Points, side: float) -> dict[tuple[int, int], int]:
    """By the cells of a grid, column and row, the sample nearest to the middle of each; the first where two are equal.

    >>> in_cells(np.array([[0.1, 0.1], [0.4, 0.6], [1.5, 0.5], [-0.5, 3.9]]), 1.0)
    {(0, 0): 1, (1, 0): 2, (-1, 3): 3}
    """
    cells = np.floor(places / side).astype(np.int64)
    away = np.abs(places / side - cells - 0.5).max(axis=1)
    nearest: dict[tuple[int, int], int] = {}
    for sample, (column, row) in enumerate(cells.tolist()):
        if (column, row) not in nearest or away[sample] < away[nearest[column, row]]:
            nearest[column, row] = sample
    return nearest
