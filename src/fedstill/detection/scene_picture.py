"""A static figure of a scene: its cloud with the boxes in it, from above and at an angle."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from numpy.typing import NDArray

from fedstill.core.errors import InputError
from fedstill.detection.scenes import Floats, Scenes, corners, inside
from fedstill.report.pictures.colours import FAINT, INK, box_colours
from fedstill.report.pictures.image_files import save

_VIEWS = {  # towards the viewer, and upwards on paper
    "above": ((0.0, 0.0, 1.0), (0.0, 1.0, 0.0)),
    "at an angle": ((-0.55, -0.62, 0.56), (0.0, 0.0, 1.0)),
}
EDGES = np.array([(0, 1), (1, 2), (2, 3), (3, 0), (4, 5), (5, 6), (6, 7), (7, 4), (0, 4), (1, 5), (2, 6), (3, 7)])
_FEW = 3  # scenes that go below each other; more go two abreast
MARGIN = 0.03  # metres around a box: noise moves points of its surface outside
_GREY = np.array(to_rgb("#c3ccd0"))


def draw_scenes(scenes: Scenes, rows: Sequence[int], path: Path, title: str = "") -> None:
    """Some scenes, each from above and at an angle, as a PNG; points in boxes have their colour."""
    if path.suffix.lower() != ".png":
        raise InputError(f"cannot draw {path}: name a .png file")
    if not rows or not all(0 <= row < len(scenes) for row in rows):
        raise InputError(f"there are scenes 0 to {len(scenes) - 1}: cannot draw {', '.join(map(str, rows)) or 'none'}")
    abreast = 1 if len(rows) <= _FEW else 2
    lines = -(-len(rows) // abreast)
    width, height = (11.0, 4.6) if abreast == 1 else (17.0, 3.8)
    figure = Figure(figsize=(width, height * lines + 0.8), layout="constrained")
    grid = figure.subplots(lines, 2 * abreast, squeeze=False).reshape(-1, 2)
    colours = box_colours(len(scenes.class_names))
    for axes in grid[len(rows) :].flat:
        axes.set_visible(False)
    for pair, row in zip(grid, rows, strict=False):
        for axes, view in zip(pair, _VIEWS, strict=True):
            _draw(axes, scenes, row, view, colours)
        pair[0].set_title(scene_name(scenes, row), fontsize=9, color=INK, loc="left")
    shown = sorted({int(number) for row in rows for number in scenes.boxes_of(row)[1]})
    if shown:
        marks = [Line2D([], [], marker="o", linestyle="", color=colours[number]) for number in shown]
        names = [scenes.class_names[number] for number in shown]
        figure.legend(marks, names, loc="outside lower center", ncols=10, frameon=False, fontsize=9, labelcolor=INK)
    if title:
        figure.suptitle(title, fontsize=11, color=INK, x=0.01, ha="left")
    save(figure, path, dpi=130)


def scene_name(scenes: Scenes, row: int) -> str:
    kind = int(scenes.kinds[row])
    words = [scenes.kind_names[kind] if kind >= 0 else "", scenes.names[row] if scenes.names else f"scene {row}"]
    return " · ".join(word for word in words if word)


def _draw(axes: Axes, scenes: Scenes, row: int, view: str, colours: Sequence[str]) -> None:
    cloud = scenes.points[row].double().numpy()
    boxes, labels = (part.numpy() for part in scenes.boxes_of(row))
    boxes = boxes.astype(np.float64)
    towards, top = (np.array(axis) for axis in _VIEWS[view])
    towards /= np.linalg.norm(towards)
    right = np.cross(top, towards)
    right /= np.linalg.norm(right)
    frame = np.stack([right, np.cross(towards, right), towards])
    seen = cloud @ frame.T
    order = np.argsort(seen[:, 2], kind="stable")  # the farthest first
    shade = shades(cloud, boxes, labels, colours)
    dot = float(np.clip(18_000 / len(cloud), 0.6, 7.0))
    axes.scatter(seen[order, 0], seen[order, 1], s=dot, c=shade[order], linewidths=0)
    ends = corners(boxes) @ frame.T
    for box, label in zip(ends, labels, strict=True):
        axes.add_collection(LineCollection(box[EDGES][:, :, :2], colors=colours[label], linewidths=1.3))
        if view == "above":
            name_box(axes, (box[:, 0].mean(), box[:, 1].mean()), scenes.class_names[label], INK, 7.5, "center")
    axes.set_aspect("equal")
    axes.autoscale_view()
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set(xticks=[], yticks=[])
    axes.set_xlabel(view, fontsize=8, color=FAINT)


def name_box(axes: Axes, at: tuple[float, float], name: str, colour: str, size: float, rests: str) -> None:
    """A label on top of points, with a white outline."""
    around = [withStroke(linewidth=2, foreground="white")]
    axes.text(float(at[0]), float(at[1]), name, ha="center", va=rests, fontsize=size, color=colour, path_effects=around)


def shades(cloud: Floats, boxes: Floats, labels: NDArray[np.int64], colours: Sequence[str]) -> Floats:
    """Grey for the room, the class's colour in boxes; lower points are darker, to distinguish surfaces."""
    shade = np.tile(_GREY, (len(cloud), 1))
    if len(boxes):
        within = inside(cloud, boxes, MARGIN)
        # If boxes overlap, such as a chair under its table, the point belongs to the smaller one.
        volume = np.where(within, boxes[:, 3:6].prod(axis=1), np.inf)
        owner = volume.argmin(axis=1)
        # Points on the floor have the floor's colour, also inside a box.
        floor = np.quantile(cloud[:, 2], 0.02) + 0.04
        own = within.any(axis=1) & (cloud[:, 2] > floor)
        shade[own] = np.array([to_rgb(colours[label]) for label in labels])[owner[own]]
    height = cloud[:, 2] - cloud[:, 2].min()
    light = 0.72 + 0.28 * np.clip(height / 1.2, 0, 1)
    lit: Floats = shade * light[:, None]
    return lit
