"""What a model's features look like, and where its head draws the lines: samples in the plane of their main axes.

The plane goes through the mean of the features along their first two principal components. Regions are what the head
says of points in that plane; samples themselves lie before or behind it, so some stand in a region of another class
than the one the model gives them. How many do is said.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedstill.core.errors import InputError
from fedstill.core.numbers import share
from fedstill.report.figure import Figure, Key, axis, label, symbol
from fedstill.report.pictures.colours import part_colours

Floats = npt.NDArray[np.float64]
Classes = npt.NDArray[np.int64]

_CELLS = 100  # of a panel's grid, each way
_MARGIN = 0.06  # of the samples' extent, on each side
_MOST = 400  # samples drawn
_OTHER = "var(--unused)"


@dataclass(frozen=True)
class Features:
    """Samples as a model sees them, what they are, and what its head makes of such features."""

    title: str
    features: Floats  # samples x channels
    labels: Classes
    classify: Callable[[Floats], Classes]  # from features, samples x channels, to classes by number


@dataclass(frozen=True)
class Plane:
    """The main axes of some features: a mean and two directions of length one."""

    mean: Floats
    axes: Floats  # 2 x channels
    explained: float  # share of the variance

    @classmethod
    def through(cls, features: Floats) -> Plane:
        """By the singular values of what is left without the mean; signs such that the largest weights are positive."""
        mean = features.mean(axis=0)
        _, sizes, directions = np.linalg.svd(features - mean, full_matrices=False)
        axes = directions[:2]
        largest = np.abs(axes).argmax(axis=1)
        axes = axes * np.sign(axes[np.arange(len(axes)), largest])[:, None]
        return cls(mean, axes, float((sizes[:2] ** 2).sum() / max(1e-12, (sizes**2).sum())))

    def places(self, features: Floats) -> Floats:
        placed: Floats = (features - self.mean) @ self.axes.T
        return placed

    def features(self, places: Floats) -> Floats:
        """The point of the plane at that place."""
        lifted: Floats = self.mean + places @ self.axes
        return lifted


def feature_maps(id: str, title: str, panels: Sequence[Features], names: Sequence[str]) -> Figure:
    """Panels side by side, each in a plane of its own: colours are classes, marks samples, the ground what heads say.

    Four panels make two rows.
    """
    for one in panels:
        _check(one, names)
    shown = sorted({number for one in panels for number in one.labels.tolist()})
    look = {number: place for place, number in enumerate(shown)}
    tints = part_colours(len(shown))  # not the page's own, of which there are too few for regions
    data: list[dict[str, Any]] = []
    columns = 2 if len(panels) in (2, 4) else len(panels)
    rows = -(-len(panels) // columns)
    layout: dict[str, Any] = {"height": 400 if rows == 1 else 360 * rows}
    told, others = [], False
    traces: dict[int, list[int]] = {number: [] for number in shown}
    for panel, one in enumerate(panels):
        ending = "" if panel == 0 else str(panel + 1)
        ground, explained, agreeing, places = _ground(one, look, tints)
        where = {"xaxis": f"x{ending}", "yaxis": f"y{ending}"}
        data.append({**ground, **where})
        others |= any(len(look) in row for row in ground["z"])
        for number in shown:
            own = places[one.labels == number][:_MOST]
            traces[number].append(len(data))
            data.append({**_marks(own, names[number], tints[look[number]], symbol(look[number])), **where})
        bare = {"showgrid": False, "showticklabels": False}
        edges = {"x": _ends(ground["x"]), "y": _ends(ground["y"])}
        row, column = divmod(panel, columns)
        across, up = _part(column, columns, 0.04), _part(rows - 1 - row, rows, 0.12)
        layout[f"xaxis{ending}"] = axis(one.title, domain=across, anchor=f"y{ending}", range=edges["x"], **bare)
        layout[f"yaxis{ending}"] = {"anchor": f"x{ending}", "domain": up, "range": edges["y"], **bare}
        told.append(
            f"{one.title}: the plane holds {share(explained, 0)} of the variance, and {share(agreeing, 0)} of samples"
            " stand in the region of the class that the model gives them."
        )
    keys = [
        Key(names[number], tints[look[number]], tuple(traces[number]), shape="symbol", symbol=symbol(look[number]))
        for number in shown
    ]
    return Figure(
        id,
        title,
        f"Samples by the two main axes of their features. {' '.join(told)}",
        "Each mark is a test sample at its place along the two main axes of what the model's head reads, coloured by"
        " true class; the ground is the class that the head gives to points of that plane, grey where it is another."
        f" {' '.join(told)}",
        data,
        layout,
        [*keys, *([Key("region of another class", _OTHER, shape="box")] if others else [])],
        width=760,
    )


def _ground(
    one: Features, look: Mapping[int, int], tints: Sequence[str]
) -> tuple[dict[str, Any], float, float, Floats]:
    """The regions as a map, how much the plane explains, how many samples agree with it, and where they stand."""
    plane = Plane.through(one.features)
    places = plane.places(one.features)
    low, high = places.min(axis=0), places.max(axis=0)
    room = _MARGIN * np.maximum(high - low, 1e-9)
    across, up = (np.linspace(low[way] - room[way], high[way] + room[way], _CELLS) for way in (0, 1))
    grid = np.stack(np.meshgrid(across, up), axis=-1).reshape(-1, 2)
    said = one.classify(plane.features(grid))
    agreeing = float((one.classify(plane.features(places)) == one.classify(one.features)).mean())
    steps = len(look) + 1  # one for all other classes
    values = np.array([look.get(int(number), len(look)) for number in said]).reshape(_CELLS, _CELLS)
    scale = [[edge / steps, tint] for place, tint in enumerate([*tints, _OTHER]) for edge in (place, place + 1)]
    ground = {
        "type": "heatmap",
        "x": across.tolist(),
        "y": up.tolist(),
        "z": values.tolist(),
        "colorscale": scale,
        "zmin": -0.5,
        "zmax": steps - 0.5,
        "opacity": 0.28,
        "showscale": False,
        "hoverinfo": "skip",
    }
    return ground, plane.explained, agreeing, places


def _marks(places: Floats, name: str, tint: str, mark: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": label(name),
        "x": places[:, 0].tolist(),
        "y": places[:, 1].tolist(),
        "marker": {"color": tint, "symbol": mark, "size": 6, "opacity": 0.85},
        "hovertemplate": f"{label(name)}<extra></extra>",
    }


def _part(number: int, of: int, gap: float) -> list[float]:
    """The ends of one of several equal parts of an axis, with gaps between them.

    >>> _part(1, 2, 0.04)
    [0.52, 1.0]
    """
    size = (1 - gap * (of - 1)) / of
    start = number * (size + gap)
    return [round(start, 6), round(start + size, 6)]


def _ends(values: Sequence[float]) -> list[float]:
    return [values[0], values[-1]]


def _check(one: Features, names: Sequence[str]) -> None:
    if one.features.ndim != 2 or len(one.features) < 3 or one.features.shape[1] < 2:
        raise InputError(f"a map of features needs samples and channels, not an array of shape {one.features.shape}")
    if one.labels.shape != (len(one.features),):
        raise InputError(f"{len(one.features)} samples need as many labels, not {one.labels.shape}")
    if not np.isfinite(one.features).all():
        raise InputError("the features are not all finite: there is no map of them")
    if int(one.labels.min()) < 0 or int(one.labels.max()) >= len(names):
        raise InputError(f"the labels are not all among the {len(names)} names given")
