"""Plotly's traces in matplotlib, as far as this package's figures use them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from html import unescape
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgb

from fedstill.report.extensions import TurnedFigure, turned_figures

Line = Literal["-", "--", ":", "-."]
LINES: dict[str, Line] = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}
MARKERS = {
    "circle": "o",
    "square": "s",
    "diamond": "D",
    "triangle-up": "^",
    "triangle-down": "v",
    "cross": "P",
    "pentagon": "p",
    "x": "X",
    "star": "*",
    "hexagon": "h",
    "line-ns": "|",
}
HATCHES = {"": "", "/": "///", "\\": "\\\\\\", "x": "xxx", "-": "---", "+": "+++", ".": "..."}
_SMALLER = 0.8  # from a browser's pixels to points of print

Trace = Mapping[str, Any]


def plain(text: str) -> str:
    """What Plotly reads as markup, as the letters and lines that it shows.

    >>> plain("teacher<br>a &lt;br&gt; b")
    'teacher\\na <br> b'
    """
    return "\n".join(unescape(line) for line in text.split("<br>"))


@dataclass
class Painter:
    """Where traces go, what colours are, and what the layout and earlier traces say of the axes."""

    axes: Axes
    paint: Callable[[str], str]
    layout: Mapping[str, Any]
    names: dict[str, list[str]] = field(default_factory=dict)  # along an axis of names, in order
    tops: list[float] = field(default_factory=list)  # of bars that others are stacked on

    def places(self, trace: Trace, way: str) -> list[Any]:
        """Positions along an axis; names get places in the order in which they first came."""
        wanted = self.layout[f"{way}axis{trace.get(f'{way}axis', way)[1:]}"]
        if wanted.get("type") != "category":
            return list(trace[way])
        axis = self.axes.xaxis if way == "x" else self.axes.yaxis
        known = self.names.setdefault(way, list(wanted.get("categoryarray", [])))
        known += [name for name in dict.fromkeys(trace[way]) if name not in known]
        axis.set_ticks(range(len(known)), [plain(name) for name in known])
        return [known.index(name) for name in trace[way]]

    def many(self, colours: str | Sequence[str], count: int) -> list[str]:
        return [self.paint(each) for each in ([colours] * count if isinstance(colours, str) else colours)]


def scatter(painter: Painter, trace: Trace) -> None:
    x, y, mode = painter.places(trace, "x"), painter.places(trace, "y"), trace["mode"]
    if "text" in mode.split("+"):
        for across, up, text in zip(x, y, trace["text"], strict=True):
            colour = painter.paint(trace["textfont"]["color"])
            side = "left" if trace.get("textposition") == "middle right" else "center"
            painter.axes.text(across, up, plain(text), ha=side, va="center", fontsize=8.5, color=colour)
    if trace.get("fill") == "toself":
        painter.axes.fill(x, y, color=painter.paint(trace["fillcolor"]), alpha=trace["opacity"], linewidth=0)
    if "lines" in mode:
        line = trace["line"]
        painter.axes.plot(
            x, y, color=painter.paint(line["color"]), linestyle=LINES[line.get("dash", "solid")], linewidth=1.7
        )
    for way in ("error_x", "error_y"):
        if way in trace:
            bars: dict[str, Any] = {f"{way[-1]}err": trace[way]["array"]}
            colour = painter.paint(trace[way]["color"])
            painter.axes.errorbar(x, y, **bars, fmt="none", ecolor=colour, elinewidth=0.8, capsize=1.5)
    if "markers" in mode:
        marker = trace["marker"]
        name: str = marker.get("symbol", "circle")
        colour = painter.paint(marker["color"])
        open_ = name.endswith("-open")
        painter.axes.plot(
            x,
            y,
            linestyle="",
            marker=MARKERS[name.removesuffix("-open")],
            markersize=_SMALLER * marker["size"],
            color=colour,
            markerfacecolor="none" if open_ else colour,
            markeredgewidth=2.5 if name.startswith("line") else 1.4 if open_ else 0.5,
            alpha=marker.get("opacity", 1.0),
            clip_on=False,
        )


def bar(painter: Painter, trace: Trace) -> None:
    lying = trace.get("orientation") == "h"
    places = painter.places(trace, "y" if lying else "x")
    values = [value if value is not None else np.nan for value in trace["x" if lying else "y"]]
    colours = painter.many(trace["marker"]["color"], len(values))
    shapes = trace["marker"].get("pattern", {}).get("shape", [""] * len(values))
    error = trace.get("error_x" if lying else "error_y", {}).get("array")
    put = painter.axes.barh if lying else painter.axes.bar
    below: dict[str, Any] = {"bottom": list(painter.tops)} if painter.tops else {}
    bars = put(places, values, trace.get("width", 0.75), **below, color=colours, edgecolor="white")
    if painter.layout.get("barmode") == "stack":
        before = painter.tops or [0.0] * len(values)
        painter.tops = [low + value for low, value in zip(before, values, strict=True)]
    for one, shape in zip(bars, shapes, strict=True):
        one.set_hatch(HATCHES[shape])
    if error:
        style: dict[str, Any] = {
            "fmt": "none",
            "ecolor": painter.paint("var(--ink)"),
            "elinewidth": 1.2,
            "capsize": 2.5,
        }
        if lying:
            painter.axes.errorbar(values, places, xerr=error, **style)
        else:
            painter.axes.errorbar(places, values, yerr=error, **style)
    _write(painter, trace, places, values, error or [0.0] * len(values), lying)


def _write(
    painter: Painter, trace: Trace, places: list[Any], values: list[float], error: Sequence[float], lying: bool
) -> None:
    """Numbers at the ends of bars, beyond the whiskers."""
    for place, value, beyond, text in zip(places, values, error, trace.get("text", []), strict=False):
        if not np.isfinite(value):
            continue
        where = (value + beyond, place) if lying else (place, value + beyond)
        below = value < 0
        painter.axes.annotate(
            plain(text.strip()),
            where,
            xytext=(4, 0) if lying else (0, -3 if below else 2),
            textcoords="offset points",
            ha="left" if lying else "center",
            va="center" if lying else "top" if below else "bottom",
            fontsize=8.5,
            color=painter.paint("var(--ink)"),
        )


def heatmap(painter: Painter, trace: Trace) -> None:
    x, y = painter.places(trace, "x"), painter.places(trace, "y")
    cells = np.array([[np.nan if value is None else value for value in row] for row in trace["z"]], dtype=float)
    steps = [(at, painter.paint(colour)) for at, colour in trace["colorscale"]]
    scale = LinearSegmentedColormap.from_list("still", steps)
    low, high = trace.get("zmin", 0.0), trace.get("zmax", 1.0)
    painter.axes.pcolormesh(
        np.array(x, dtype=float),
        np.array(y, dtype=float),
        np.ma.masked_invalid(cells),
        cmap=scale,
        vmin=low,
        vmax=high,
        shading="nearest",
        edgecolors="white" if trace.get("ygap") else "none",
        linewidth=1 if trace.get("ygap") else 0,
        alpha=trace.get("opacity", 1.0),
        rasterized="opacity" in trace,  # a ground of thousands of cells
    )
    if not trace.get("texttemplate"):
        return
    for place, row, texts in zip(y, cells, trace["text"], strict=True):
        for across, value, text in zip(x, row, texts, strict=True):
            if np.isfinite(value):
                ground = scale((value - low) / ((high - low) or 1.0))
                colour = max((painter.paint("var(--ink)"), "#ffffff"), key=partial(contrast, ground[:3]))
                painter.axes.text(across, place, plain(text), ha="center", va="center", fontsize=8.5, color=colour)


def draw_cloud(canvas: Any, trace: Trace, paint: Callable[[str], str]) -> None:
    """A still of a cloud that the page turns."""
    axes: Any = canvas.add_subplot(projection="3d")
    points, labels = np.array(trace["points"]), np.array(trace["labels"])
    colours = [to_rgb(paint(colour)) for colour in trace["colours"]]
    axes.scatter(*points.T, c=[colours[mark] for mark in labels], s=6, depthshade=True)
    axes.set_axis_off()
    axes.set_box_aspect((1, 1, 1))
    for name in ("x", "y", "z"):
        getattr(axes, f"set_{name}lim")(-0.75, 0.75)
    axes.view_init(elev=20, azim=-55)


def contrast(ground: Sequence[float], colour: str) -> float:
    """How well a colour can be read on another: the ratio that accessibility guidelines use, from 1 to 21.

    >>> round(contrast((0, 0, 0), "#ffffff"))
    21
    """
    bright, dark = sorted((_luminance(ground), _luminance(to_rgb(colour))), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


def _luminance(colour: Sequence[float]) -> float:
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


DRAW: dict[str, Callable[[Painter, Trace], None]] = {"scatter": scatter, "bar": bar, "heatmap": heatmap}


turned_figures.register("cloud")(TurnedFigure(lambda trace: 320, draw_cloud))
