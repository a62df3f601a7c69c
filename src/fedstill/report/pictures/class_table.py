"""Who has what: a table of clients x classes, drawn to a file or as text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from fedstill.core.errors import InputError
from fedstill.report.pictures.colours import ACCENT, INK, SHADES
from fedstill.report.pictures.image_files import save

_FEW_CLIENTS = 24  # up to here every cell has room for its number
_FEW_CLASSES = 48
_FORMATS = (".png", ".svg")


def draw_partition(
    table: Tensor,
    classes: Sequence[str],
    path: Path,
    title: str = "",
    scenes: Tensor | None = None,
    sites: Sequence[str] = (),
) -> None:
    """A heatmap of samples per client and class under a bar chart of client sizes, as PNG or SVG.

    Where the table counts boxes, `scenes` are the sizes of clients; `sites` are the names of clients that have some.
    """
    if path.suffix.lower() not in _FORMATS:
        raise InputError(f"{path} must end in {' or '.join(_FORMATS)}")
    clients, count = table.shape
    width = min(14.0, max(5.0, 2.6 + 0.62 * clients))
    height = 2.1 + max(1.4, 0.36 * count if count <= _FEW_CLASSES else 8.0)
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(2, 1, sharex=True, height_ratios=[0.9, height - 2.0])
    _draw_sizes(axes[0], table.sum(dim=1) if scenes is None else scenes, "samples" if scenes is None else "scenes")
    shades = _draw_cells(axes[1], table, classes)
    if sites and clients <= _FEW_CLIENTS:
        axes[1].set_xticks(np.arange(clients), [shortened(name, 24) for name in sites], rotation=30, ha="right")
        axes[1].set_xlabel("site", fontsize=9, color=INK)
    bar = figure.colorbar(shades, ax=axes[1], pad=0.015, aspect=24, fraction=0.04)
    bar.locator = MaxNLocator(4, integer=True)
    bar.update_ticks()
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=8, colors=INK, length=0)
    bar.set_label("samples" if scenes is None else "boxes", fontsize=8, color=INK)
    if title:
        figure.suptitle(title, fontsize=11, color=INK, x=0.01, ha="left")
    save(figure, path, dpi=150)


def _draw_sizes(axes: Axes, held: Tensor, of: str) -> None:
    sizes = held.numpy()
    few = len(sizes) <= _FEW_CLIENTS
    if few:
        axes.bar(np.arange(len(sizes)), sizes, width=0.72, color=ACCENT)
    else:
        axes.stairs(sizes, np.arange(len(sizes) + 1) - 0.5, fill=True, color=ACCENT)
    axes.set_ylim(0, max(1, sizes.max()) * (1.3 if few else 1.08))
    axes.set_ylabel(of, fontsize=8, color=INK)
    if few:
        axes.set_yticks([])
        for client, size in enumerate(sizes):
            axes.annotate(
                f"{size:,}",
                (client, size),
                xytext=(0, 2),
                textcoords="offset points",
                ha="center",
                fontsize=8,
                color=INK,
            )
    else:
        axes.yaxis.set_major_locator(MaxNLocator(3, integer=True))
    axes.tick_params(axis="y", labelsize=8, colors=INK, length=0)
    axes.tick_params(axis="x", which="both", length=0, labelbottom=False)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color("#b8c4c8")


def _draw_cells(axes: Axes, table: Tensor, classes: Sequence[str]) -> AxesImage:
    cells = table.T.numpy()
    count, clients = cells.shape
    most = max(1, int(cells.max()))
    # The square root lets a handful of samples be seen beside a thousand.
    norm = PowerNorm(0.5, vmin=0, vmax=most)
    shades = axes.imshow(cells, cmap=SHADES, norm=norm, aspect="auto", interpolation="nearest")
    if count <= _FEW_CLASSES:
        axes.set_yticks(np.arange(count), [shortened(name, 24) for name in classes])
        axes.set_yticks(np.arange(1, count) - 0.5, minor=True)
    else:
        axes.yaxis.set_major_locator(MaxNLocator(12, integer=True))
        axes.set_ylabel("class", fontsize=9, color=INK)
    if clients <= _FEW_CLIENTS:
        axes.set_xticks(np.arange(clients))
        axes.set_xticks(np.arange(1, clients) - 0.5, minor=True)
    else:
        axes.xaxis.set_major_locator(MaxNLocator(11, integer=True))
    if clients <= _FEW_CLIENTS and count <= _FEW_CLASSES:
        for row, column in zip(*np.nonzero(cells), strict=True):
            value = cells[row, column]
            colour = "white" if norm(value) > 0.6 else INK
            axes.text(column, row, f"{value:,}", ha="center", va="center", fontsize=8, color=colour)
    if count <= _FEW_CLASSES:
        axes.grid(which="minor", color="#e3e9eb", linewidth=0.8)
    axes.set_xlabel("client", fontsize=9, color=INK)
    axes.tick_params(labelsize=8, colors=INK, length=0)
    axes.tick_params(which="minor", length=0)
    for spine in axes.spines.values():
        spine.set_color("#b8c4c8")
    return shades


_BLOCKS = " ░▒▓█"
_MOST_LINES = 40


def partition_text(
    table: Tensor,
    classes: Sequence[str],
    width: int = 80,
    scenes: Tensor | None = None,
    sites: Sequence[str] = (),
) -> str:
    """The table as lines of text: numbers where they fit, shades of grey where they do not.

    Where it counts boxes, `scenes` are the sizes of clients; `sites` are the names of clients that have some.

    >>> import torch
    >>> print(partition_text(torch.tensor([[64, 0], [16, 48]]), ["control", "coronal"], width=50))
    client  samples  control  coronal
         0       64       64        ·
         1       64       16       48
    """
    clients, count = table.shape
    sizes = (table.sum(dim=1) if scenes is None else scenes).tolist()
    names = [shortened(name, 24) for name in sites] or [str(client) for client in range(clients)]
    first = max(6, *(len(name) for name in names)) if sites else 6
    lead = f"{'site' if sites else 'client':>{first}}  {'samples' if scenes is None else 'scenes':>7}"
    digits = len(str(int(table.max()))) + 1
    room = (width - len(lead)) // max(1, count)
    shown = _ends(clients)
    if room >= digits:
        cell = min(room, max(digits, *(len(name) for name in classes)) + 2)
        lines = [lead + "".join(f"{shortened(name, cell - 1):>{cell}}" for name in classes)]
        rows = {k: "".join(f"{n or '·':>{cell}}" for n in table[k].tolist()) for k in shown}
    else:
        step = -(-count // max(1, width - len(lead) - 2))
        lines = [f"{lead}  classes 0 to {count - 1}" + (f", {step} to a mark" if step > 1 else "")]
        most = max(1, int(table.max()))
        rows = {k: "  " + _shaded(table[k].tolist(), step, most) for k in shown}
    before = -1
    for client in shown:
        if client != before + 1:
            lines.append(f"{'...':>{first}}")
        lines.append(f"{names[client]:>{first}}  {sizes[client]:>7,}{rows[client]}".rstrip())
        before = client
    return "\n".join(lines)


def _ends(clients: int) -> list[int]:
    """All clients, or the first and the last of very many."""
    half = _MOST_LINES // 2
    return list(range(clients)) if clients <= _MOST_LINES else [*range(half), *range(clients - half, clients)]


def _shaded(counts: list[int], step: int, most: int) -> str:
    """A mark per `step` classes; anything but zero leaves a trace."""
    groups = [max(counts[start : start + step]) for start in range(0, len(counts), step)]
    return "".join(_BLOCKS[-(-n * (len(_BLOCKS) - 1) // most)] for n in groups)


def shortened(name: str, width: int) -> str:
    """A name that fits.

    >>> shortened("immature granulocyte", 9)
    'immature…'
    """
    return name if len(name) <= width else name[: width - 1].rstrip() + "…"
