"""Sheets of samples as PNG: clouds as shaded points, images as they are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from fedstill.report.pictures.class_table import shortened
from fedstill.report.pictures.cloud_views import normals_and_spacing, seen, upright
from fedstill.report.pictures.colours import INK, LIT, part_colours, surface_of
from fedstill.report.pictures.gallery import Gallery, Sheet, lay_out
from fedstill.report.pictures.image_files import head, save

_CLOUD = 1.55  # inches of a cell
_IMAGE = 0.8
_LETTER = 0.072  # inches of a letter of a label
_HEAD = 0.42  # inches for the title
_LINE = 0.22  # inches for a line of the legend
_ROOM = 2.06  # of a cell for a cloud of radius 1


def draw_sheet(gallery: Gallery, path: Path, up: str = "z", turn: float = 0.0) -> None:
    """Draw the samples chosen, as a PNG."""
    cloud = gallery.kind == "cloud"
    inch = _CLOUD if cloud else _IMAGE
    views = ("above", "front", "side") if cloud else ("",)
    sheet = lay_out(gallery, views, "corner" if cloud else "", _LETTER / inch)
    figure, axes = _page(sheet, gallery, inch)
    if cloud:
        _draw_clouds(axes, sheet, inch, up, turn, [surface_of(colour) for colour in part_colours(gallery.parts)])
    else:
        _draw_images(axes, sheet)
    save(figure, path, dpi=160)


def _page(sheet: Sheet, gallery: Gallery, inch: float) -> tuple[Figure, Axes]:
    """A figure whose axes count cells, y downwards, with words but without samples."""
    width = max(sheet.width * inch + 0.1, len(gallery.name) * 0.11 + len(gallery.about) * 0.078 + 0.4)
    lines = _wrapped(gallery.legend, width)
    height = sheet.height * inch + _HEAD + _LINE * len(lines) + 0.1
    figure = Figure(figsize=(width, height))
    axes = figure.add_axes((0, 0.1 / height, sheet.width * inch / width, sheet.height * inch / height))
    axes.set(xlim=(0, sheet.width), ylim=(sheet.height, 0))
    axes.axis("off")
    head(figure, axes, (0.12 / width, 1 - 0.26 / height), gallery.name, gallery.about)
    colours = iter(part_colours(gallery.parts))
    for number, line in enumerate(lines):
        for name, left in line:
            place = left / width, 1 - (_HEAD + 0.02 + _LINE * number) / height
            figure.text(*place, "●", color=next(colours), fontsize=9, va="center")
            figure.text(place[0] + 0.15 / width, place[1], name, color=INK, fontsize=9, va="center")
    for label in sheet.labels:
        text = shortened(label.text, 24)
        axes.text(label.column - 0.08, label.row + 0.5, text, ha="right", va="center", color=INK, fontsize=9)
    return figure, axes


def _wrapped(names: Sequence[str], width: float) -> list[list[tuple[str, float]]]:
    """The words of a legend with their places from the left, in inches, in as many lines as they need.

    >>> [[name for name, _ in line] for line in _wrapped(["nose", "ears", "forehead"], width=1.5)]
    [['nose', 'ears'], ['forehead']]
    """
    lines: list[list[tuple[str, float]]] = []
    left = width
    for name in names:
        needed = 0.3 + len(name) * _LETTER
        if left + needed > width:
            lines.append([])
            left = 0.12
        lines[-1].append((name, left))
        left += needed
    return lines


def _draw_clouds(
    axes: Axes, sheet: Sheet, inch: float, up: str, turn: float, surfaces: Sequence[LinearSegmentedColormap]
) -> None:
    """All clouds at once, the farthest points first, so that nearer ones cover them; parts in colours of their own."""
    known: dict[int, tuple[NDArray[np.float64], NDArray[np.float64], float]] = {}
    points, depths, colours, sizes = [], [], [], []
    for cell in sheet.cells:
        if id(cell.sample) not in known:
            cloud = upright(cell.sample.numpy(), up, turn)
            known[id(cell.sample)] = (cloud, *normals_and_spacing(cloud))
        cloud, normals, spacing = known[id(cell.sample)]
        paper, depth, light = seen(cloud, normals, cell.view)
        points.append(paper * [1, -1] / _ROOM + [cell.column + 0.5, cell.row + 0.5])
        depths.append(depth)
        far = (1 - np.clip(depth, -1, 1)[:, None]) / 2
        shade = LIT(light)[:, :3] if cell.marks is None else _shade(light, cell.marks.numpy(), surfaces)
        colours.append(shade + (1 - shade) * 0.55 * far)  # what is far fades into the paper
        dot = np.clip(1.4 * spacing / _ROOM * inch * 72, 1.2, 5.0)  # in points of the printer
        sizes.append(np.full(len(depth), dot**2))
    order = np.argsort(np.concatenate(depths), kind="stable")
    at = np.concatenate(points)[order]
    axes.scatter(at[:, 0], at[:, 1], s=np.concatenate(sizes)[order], c=np.concatenate(colours)[order], linewidths=0)


def _shade(
    light: NDArray[np.float64], marks: NDArray[np.int64], surfaces: Sequence[LinearSegmentedColormap]
) -> NDArray[np.float64]:
    shade = np.empty((len(light), 3))
    for part in np.unique(marks):
        shade[marks == part] = surfaces[part](light[marks == part])[:, :3]
    return shade


def _draw_images(axes: Axes, sheet: Sheet) -> None:
    gap = 0.04
    for cell in sheet.cells:
        extent = (cell.column + gap, cell.column + 1 - gap, cell.row + 1 - gap, cell.row + gap)
        axes.imshow(_pixels(cell.sample), extent=extent, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    axes.set(xlim=(0, sheet.width), ylim=(sheet.height, 0), aspect="auto")


def _pixels(image: Tensor) -> NDArray[np.float32]:
    """(height, width, 3) or (height, width) from 0 to 1: 8-bit images come as -1..1, others in a range of their own."""
    pixels: NDArray[np.float32] = image.float().numpy().transpose(1, 2, 0)
    low, high = (-1.0, 1.0) if pixels.min() >= -1 and pixels.max() <= 1 else (float(pixels.min()), float(pixels.max()))
    pixels = (pixels - low) / ((high - low) or 1.0)
    return pixels[:, :, 0] if pixels.shape[2] == 1 else pixels[:, :, :3]
