"""Maps of a model's embeddings of its proxy samples, early and late in training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from torch import Tensor

from fedstill.core.errors import InputError
from fedstill.core.numbers import count
from fedstill.report.figure import symbol
from fedstill.report.pictures.colours import FAINT, INK, part_colours
from fedstill.report.thumbnails import Pictures, Points, draw_thumbnails
from fedstill.report.traces import MARKERS

_PERPLEXITY = 30.0  # effective number of neighbours; the usual value
_FEW = 24  # maximum number of classes in the legend
_WIDE = 3  # maximum number of maps side by side
_AREA = 9000.0  # square points of ink in a panel, shared by its markers
_SIDE = 4.5  # inches of a panel
_LARGE = 6.5  # of one in which samples themselves are drawn
_HEAD = 0.5  # inches for the words above and below a panel
_LETTER = 0.07  # inches of a letter in the key


@dataclass(frozen=True)
class Map:
    """Samples at their positions in the plane, each with its predicted class."""

    places: Points
    classes: Tensor
    title: str
    samples: str = ""  # what they are, in words; else how many
    pictures: Pictures | None = None  # to draw instead of marks: (samples, height, width, channels) from 0 to 1


def tsne(embeddings: Tensor, seed: int = 0) -> Points:
    """Positions (n, 2) in the plane that preserve neighbourhoods; distances between groups have no meaning.

    It runs on one thread, because the optimisation amplifies rounding differences into another map. Fewer than four
    samples have no neighbourhoods: they are placed in a row.
    """
    if embeddings.ndim != 2 or not embeddings.numel():
        raise InputError(f"a map needs a table of samples and channels, not one of shape {tuple(embeddings.shape)}")
    if not bool(embeddings.isfinite().all()):
        raise InputError("the embeddings are not all finite: there is no map of them")
    values = embeddings.detach().cpu().double().numpy()
    if len(values) < 4:
        return np.stack([np.arange(len(values), dtype=np.float64), np.zeros(len(values))], axis=1)
    from sklearn.manifold import TSNE  # imported here, because few commands need it and it loads slowly
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    # Initialised by the principal axes of the data, if it has two, so that the map does not depend on a random start.
    flat = min(values.shape) < 2 or bool((values == values[0]).all())
    mapping = TSNE(
        perplexity=min(_PERPLEXITY, (len(values) - 1) / 3),
        init="random" if flat else "pca",
        random_state=seed,
        n_jobs=1,
    )
    with threadpool_limits(1):
        places: Points = mapping.fit_transform(values).astype(np.float64)
    return places


def embedding_figure(maps: Sequence[Map], names: Sequence[str]) -> Figure:
    """Maps side by side, each sample with the colour and marker of its predicted class.

    A class looks the same in all maps; the legend lists those that occur, if there are few enough.
    """
    for one in maps:
        _check(one, names)
    found = sorted({kind for one in maps for kind in one.classes.tolist()})
    few = len(found) <= _FEW
    drawn = any(one.pictures is not None for one in maps)
    colours = dict(zip(found, part_colours(len(found)), strict=True))
    markers = {kind: MARKERS[symbol(number)] if few and not drawn else "o" for number, kind in enumerate(found)}
    across = 2 if len(maps) == 4 else min(_WIDE, len(maps))
    down, side = -(-len(maps) // across), _LARGE if drawn else _SIDE
    room = across * side / max(_LETTER * (len(names[kind]) + 5) for kind in found)  # number of names side by side
    lines = -(-len(found) // max(1, int(room))) if few else 0
    tall = side * max(_proportion(one.places) for one in maps)
    figure = Figure(figsize=(across * side, down * (tall + _HEAD) + 0.2 * lines + 0.1), layout="constrained")
    panels = figure.subplots(down, across, squeeze=False).flatten()
    for axes in panels[len(maps) :]:
        axes.set_axis_off()
    for axes, one in zip(panels, maps, strict=False):
        _draw(axes, one, colours, markers)
    if few:
        figure.legend(
            handles=[_handle(names[kind], colours[kind], "s" if drawn else markers[kind]) for kind in found],
            loc="outside lower left",
            ncols=-(-len(found) // lines),
            fontsize=8.5,
            frameon=False,
            labelcolor=INK,
            handletextpad=0.2,
        )
    return figure


def _proportion(places: Points) -> float:
    """Height by width, limited: a panel is no flatter than its map."""
    wide, tall = places.max(axis=0) - places.min(axis=0)
    return float(np.clip(tall / (wide or 1.0) + 0.05, 0.5, 1.0))


def _check(one: Map, names: Sequence[str]) -> None:
    size = len(one.classes)
    if one.places.shape != (size, 2) or not size:
        raise InputError(f"a map of {size} samples needs as many places, not {one.places.shape}")
    if int(one.classes.min()) < 0 or int(one.classes.max()) >= len(names):
        raise InputError(f"the predicted classes are not all among the {count(len(names), 'name')} given")
    if one.pictures is not None and len(one.pictures) != size:
        raise InputError(f"a map of {size} samples needs as many pictures, not {len(one.pictures)}")


def _draw(axes: Axes, one: Map, colours: Mapping[int, str], markers: Mapping[int, str]) -> None:
    """A panel: its samples, and their description."""
    kinds = one.classes.tolist()
    about = f"{one.samples or count(len(kinds), 'sample')}, {count(len(set(kinds)), 'predicted class')}"
    if one.pictures is None:
        _draw_marks(axes, one.places, np.array(kinds), colours, markers)
    else:
        shown = draw_thumbnails(axes, one.places, one.pictures, [colours[kind] for kind in kinds])
        about += f", {shown:,} drawn"
    axes.set_aspect("equal", adjustable="datalim")
    axes.set_title(one.title, loc="left", fontsize=10.5, color=INK, weight="bold")
    axes.set_xlabel(about, fontsize=8.5, color=FAINT, loc="left")
    # The units of such a map have no meaning.
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_color("#b8c4c8")


def _draw_marks(
    axes: Axes,
    places: Points,
    classes: npt.NDArray[np.int64],
    colours: Mapping[int, str],
    markers: Mapping[int, str],
) -> None:
    size = float(np.clip(_AREA / len(places), 6.0, 45.0))
    for kind in np.unique(classes).tolist():
        own = places[classes == kind]
        axes.scatter(
            own[:, 0],
            own[:, 1],
            s=size,
            color=colours[kind],
            marker=markers[kind],
            linewidths=0,
            alpha=0.85,
        )


def _handle(name: str, colour: str, marker: str) -> Line2D:
    return Line2D([], [], linestyle="", marker=marker, color=colour, label=name, markersize=6)
