"""Still images of the scenes on an interactive page: the first few, in their initial view."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure as Canvas
from numpy.typing import NDArray

from fedstill.detection.scene_picture import EDGES, MARGIN, name_box
from fedstill.detection.scenes import corners, inside
from fedstill.report.extensions import TurnedFigure, turned_figures

Floats = NDArray[np.float64]
Trace = Mapping[str, Any]
Paint = Callable[[str], str]

MOST = 4  # scenes
_TURN, _TILT = 0.6, -0.75  # as in the page's script
_PANEL = 330  # pixels


def still_height(trace: Trace) -> float:
    rows = -(-min(MOST, len(trace["scenes"])) // 2)
    return float(_PANEL * rows)


def draw_stills(canvas: Canvas, trace: Trace, paint: Paint) -> None:
    """The first scenes with the detections of the first source, at the page's initial score threshold."""
    scenes = trace["scenes"][:MOST]
    grid = canvas.subplots(-(-len(scenes) // 2), min(2, len(scenes)), squeeze=False)
    for axes in grid.flat:
        axes.set_axis_off()
    finder = trace["runs"][0]
    for axes, scene, found in zip(grid.flat, scenes, finder["found"], strict=False):
        sure = [one for one in found if 100 * one["score"] >= trace["least"]]
        _draw(axes, scene, sure, trace, paint)
        name = f"{scene['name']}, {finder['title']}" if len(trace["runs"]) > 1 else scene["name"]
        axes.set_title(name, fontsize=9, color=paint("var(--quiet)"), loc="left")


def _draw(axes: Axes, scene: Mapping[str, Any], found: list[Trace], trace: Trace, paint: Paint) -> None:
    points = np.array(scene["points"], np.float64)
    seen = projected(points)
    order = np.argsort(-seen[:, 2], kind="stable")  # the farthest first
    size = float(np.clip(5000 / len(points), 0.5, 4.0))
    shades = _shades(points, scene["truth"], found, trace, paint)[order]
    axes.scatter(seen[order, 0], seen[order, 1], s=size, c=shades, linewidths=0, rasterized=True)
    hit = {one["owner"] for one in found}
    labels = [
        *(
            (one, f"{trace['classes'][one['class']]}, missed" if number not in hit else "")
            for number, one in enumerate(scene["truth"])
        ),
        *((one, f"{trace['classes'][one['class']]} {one['score']:.2f}") for one in found),
    ]
    for one, text in labels:
        look = trace["looks"][one["look"]]
        ends = projected(corners(np.array([one["box"]], np.float64))[0])
        dash = tuple(float(length) for length in look["dash"].split())
        style: Any = (0, dash) if dash else "solid"
        colour = paint(look["colour"])
        axes.add_collection(LineCollection(ends[EDGES][:, :, :2], colors=colour, linewidths=1.1, linestyles=[style]))
        if text:
            name_box(axes, (ends[4:, 0].mean(), ends[4:, 1].max()), text, colour, 7, "bottom")
    axes.set_aspect("equal")
    axes.autoscale_view()


def _shades(points: Floats, truth: list[Trace], found: list[Trace], trace: Trace, paint: Paint) -> Floats:
    """A colour for each point: objects are distinguished from the room."""
    shades = np.tile((*to_rgb(paint(trace["ground"])), 0.4), (len(points), 1))
    things = truth or found
    if things:
        boxes = np.array([one["box"] for one in things], np.float64)
        within = inside(points, boxes, MARGIN) & (points[:, 2] > np.quantile(points[:, 2], 0.005) + 0.04)[:, None]
        owner = np.where(within, boxes[:, 3:6].prod(axis=1), np.inf).argmin(axis=1)  # the smallest box that contains it
        inks = ["var(--ink)" if truth else trace["looks"][one["look"]]["colour"] for one in things]
        colours = np.array([(*to_rgb(paint(ink)), 0.85) for ink in inks])
        own = within.any(axis=1)
        shades[own] = colours[owner[own]]
    return shades


def projected(points: Floats) -> Floats:
    """Projections of points (points, 3): to the right, up, and away from the viewer."""
    (cosine, sine), (flat, steep) = ((np.cos(angle), np.sin(angle)) for angle in (_TURN, _TILT))
    x, y, z = points.T
    across, away = cosine * x - sine * y, sine * x + cosine * y
    return np.stack([across, flat * z - steep * away, flat * away + steep * z], axis=1)


turned_figures.register("scene")(TurnedFigure(still_height, draw_stills))
