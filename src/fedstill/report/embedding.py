"""How a model's picture of its proxy samples changes: a map of their embeddings, early in training against late."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from torch import Tensor

from fedstill.core.errors import InputError
from fedstill.core.numbers import count
from fedstill.data.colours import FAINT, INK, part_colours
from fedstill.report.figure import symbol
from fedstill.report.traces import MARKERS

Points = npt.NDArray[np.float64]

_PERPLEXITY = 30.0  # neighbours that count; the usual number
_FEW = 24  # classes that a key can name
_WIDE = 6  # names of the key side by side
_AREA = 9000.0  # square points of ink in a panel, shared by its markers


def tsne(embeddings: Tensor, seed: int = 0) -> Points:
    """Places (n, 2) in the plane such that neighbours stay neighbours; distances between groups mean nothing.

    On one thread, because this is an optimisation in which the last bit grows into another picture. Fewer than four
    samples are too few for neighbourhoods: they stand in a row.
    """
    if embeddings.ndim != 2 or not embeddings.numel():
        raise InputError(f"a map needs a table of samples and channels, not one of shape {tuple(embeddings.shape)}")
    if not bool(embeddings.isfinite().all()):
        raise InputError("the embeddings are not all finite: there is no map of them")
    values = embeddings.detach().cpu().double().numpy()
    if len(values) < 4:
        return np.stack([np.arange(len(values), dtype=np.float64), np.zeros(len(values))], axis=1)
    from sklearn.manifold import TSNE  # here, because few need it and it takes a while to load
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    # From the main axes of the data, where it has two, so that the map is not at the mercy of a random start.
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


def embedding_figure(
    early: tuple[Points, Tensor],
    late: tuple[Points, Tensor],
    names: Sequence[str],
    titles: tuple[str, str] = ("early", "late"),
) -> Figure:
    """Two maps side by side, each sample coloured and shaped by the class that the model predicts for it.

    A class looks the same in both; the key has those that occur, where they can be told apart at all.
    """
    for points, classes in (early, late):
        if points.shape != (len(classes), 2) or not len(classes):
            raise InputError(f"a map of {len(classes)} samples needs as many places, not {points.shape}")
        if int(classes.min()) < 0 or int(classes.max()) >= len(names):
            raise InputError(f"the predicted classes are not all among the {count(len(names), 'name')} given")
    found = sorted({*early[1].tolist(), *late[1].tolist()})
    few = len(found) <= _FEW
    colours = dict(zip(found, part_colours(len(found)), strict=True))
    markers = {kind: MARKERS[symbol(number)] if few else "o" for number, kind in enumerate(found)}
    figure = Figure(figsize=(9.0, 4.6 + (0.22 * -(-len(found) // _WIDE) if few else 0.0)), layout="constrained")
    for axes, (points, classes), title in zip(figure.subplots(1, 2), (early, late), titles, strict=True):
        _draw(axes, points, classes.cpu().numpy(), colours, markers)
        said = len(set(classes.tolist()))
        axes.set_title(title, loc="left", fontsize=10.5, color=INK, weight="bold")
        axes.set_xlabel(
            f"{count(len(points), 'sample')}, {count(said, 'predicted class')}", fontsize=8.5, color=FAINT, loc="left"
        )
    if few:
        figure.legend(
            handles=[
                Line2D([], [], linestyle="", marker=markers[kind], color=colours[kind], label=names[kind], markersize=6)
                for kind in found
            ],
            loc="outside lower left",
            ncols=min(_WIDE, len(found)),
            fontsize=8.5,
            frameon=False,
            labelcolor=INK,
            handletextpad=0.2,
        )
    return figure


def _draw(
    axes: Axes, points: Points, classes: npt.NDArray[np.int64], colours: dict[int, str], markers: dict[int, str]
) -> None:
    size = float(np.clip(_AREA / len(points), 6.0, 45.0))
    for kind in np.unique(classes).tolist():
        own = points[classes == kind]
        axes.scatter(
            own[:, 0],
            own[:, 1],
            s=size,
            color=colours[kind],
            marker=markers[kind],
            linewidths=0,
            alpha=0.85,
        )
    axes.set_aspect("equal", adjustable="datalim")
    # The units of such a map mean nothing.
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_color("#b8c4c8")
