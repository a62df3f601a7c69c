"""A contact sheet of patches beside their source."""

from __future__ import annotations

from math import ceil, sqrt
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Polygon

from fedstill.core.errors import InputError
from fedstill.data.clouds import normalise
from fedstill.report.pictures.colours import part_colours
from fedstill.report.pictures.gallery import Gallery
from fedstill.report.pictures.image_files import head, save
from fedstill.report.pictures.sample_sheets import draw_sheet
from fedstill.shared_image.cloud_patches import CloudPatches
from fedstill.shared_image.patch_geometry import outlines
from fedstill.shared_image.patches import Patches

_SIDE = 5.0  # inches of the picture, and of the patches beside it
_HEAD = 0.45  # inches for the title
_MARKED = 9  # patches whose position is shown
_GAP = 0.06  # between patches, of a patch


def draw_patches(pool: Patches | CloudPatches, name: str, count: int, path: Path, up: str = "z") -> None:
    """The first patches of a pool, as a PNG: beside the image, with the positions of some; or below the cloud."""
    if path.suffix.lower() != ".png":
        raise InputError(f"cannot draw {path}: name a .png file")
    if not 1 <= count <= len(pool):
        raise InputError(f"{count:,} patches cannot be shown: the pool holds {len(pool):,}")
    about = f"{count:,} of {len(pool):,} patches · seed {pool.settings.seed}"
    if isinstance(pool, CloudPatches):
        _draw_clouds(pool, name, about, count, path, up)
    else:
        _draw_image(pool, name, about, count, path)


def _draw_clouds(pool: CloudPatches, name: str, about: str, count: int, path: Path, up: str) -> None:
    whole = torch.from_numpy(normalise(pool.cloud.numpy().copy()))[None]
    patches = pool.batch(torch.arange(count))["inputs"]
    rows = {f"{start} to {start + len(some) - 1}": some for start, some in _lines(patches, 8)}
    about += f" · {pool.shape[0]:,} of {len(pool.cloud):,} points"
    draw_sheet(Gallery(name, about, "cloud", {"whole": whole, **rows}, False), path, up)


def _lines(patches: torch.Tensor, width: int) -> list[tuple[int, torch.Tensor]]:
    return [(start, patches[start : start + width]) for start in range(0, len(patches), width)]


def _draw_image(pool: Patches, name: str, about: str, count: int, path: Path) -> None:
    high, wide = pool.image.shape[:2]
    left = _SIDE * min(1.6, wide / high)
    total = left + 0.15 + _SIDE
    figure = Figure(figsize=(total, _SIDE + _HEAD))
    bottom, top = 0.0, _SIDE / (_SIDE + _HEAD)
    _picture(figure.add_axes((0.0, bottom, left / total, top)), pool, min(_MARKED, count))
    _grid(figure.add_axes(((left + 0.15) / total, bottom, _SIDE / total, top)), pool, count)
    height = 1 - 0.5 * _HEAD / (_SIDE + _HEAD)
    said = f"{wide} x {high} pixels · {about} · places of the first {min(_MARKED, count)}, in their colours"
    head(figure, figure.axes[0], (0.012, height), name, said)
    save(figure, path, dpi=160)


def _picture(axes: Axes, pool: Patches, marked: int) -> None:
    """The image with the outlines of the first patches; the thicker edge is the top of the patch."""
    image = pool.image.numpy()
    step = max(1, min(image.shape[:2]) // 1000)  # a sheet cannot show more
    high, wide = image.shape[:2]
    axes.imshow(image[::step, ::step], extent=(0, wide, high, 0), interpolation="antialiased")
    corners = outlines(pool.place(torch.arange(marked)), *pool.shape[1:])
    for outline, colour in zip(corners, part_colours(marked), strict=True):
        axes.add_patch(Polygon(outline, fill=False, edgecolor="white", linewidth=2.6, alpha=0.8))
        axes.add_patch(Polygon(outline, fill=False, edgecolor=colour, linewidth=1.4))
        axes.plot(*outline[:2].T, color=colour, linewidth=3.0, solid_capstyle="butt")
    axes.set(xlim=(0, wide), ylim=(high, 0))
    axes.axis("off")


def _grid(axes: Axes, pool: Patches, count: int) -> None:
    side = ceil(sqrt(count))
    pixels = pool.pixels(torch.arange(count)).numpy().transpose(0, 2, 3, 1)
    colours = part_colours(min(_MARKED, count))
    for number, patch in enumerate(pixels):
        row, column = divmod(number, side)
        extent = (column + _GAP, column + 1 - _GAP, row + 1 - _GAP, row + _GAP)
        shown = np.repeat(patch, 3, axis=2) if patch.shape[2] == 1 else patch
        axes.imshow(shown, extent=extent, interpolation="nearest")
        if number < len(colours):
            frame = [(extent[0], extent[3]), (extent[1], extent[3]), (extent[1], extent[2]), (extent[0], extent[2])]
            axes.add_patch(Polygon(frame, fill=False, edgecolor=colours[number], linewidth=2.0))
    axes.set(xlim=(0, side), ylim=(side, 0), aspect="equal")
    axes.axis("off")
