"""Clouds to turn with the mouse: one HTML file that needs nothing else, not even a network."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np
from matplotlib.colors import to_hex
from numpy.typing import NDArray

from fedstill.report.pictures.cloud_views import lit, normals_and_spacing, upright
from fedstill.report.pictures.colours import FAINT, INK, LIT, part_colours, surface_of
from fedstill.report.pictures.gallery import Gallery
from fedstill.report.pictures.viewer_page import write_turning

_SCENES = 6  # browsers keep few drawing contexts alive: as many samples at a time, and classes by a menu
_COLUMNS = 3
_ZOOM = 1.6  # so that clouds fill their scenes
_STEPS = (0.0, 0.25, 0.5, 0.75, 1.0)  # of a scale of colours


def draw_turntable(gallery: Gallery, path: Path, up: str = "z", turn: float = 0.0) -> None:
    """The samples of one class at a time, each in a scene of its own; a menu chooses the class."""
    from plotly import graph_objects as go  # here, because it takes a second that other commands need not wait
    from plotly.subplots import make_subplots

    most = min(_SCENES, max(len(samples) for samples in gallery.samples.values()))
    columns = min(_COLUMNS, most)
    rows = -(-most // columns)
    figure = make_subplots(
        rows, columns, specs=[[{"type": "scene"}] * columns] * rows, horizontal_spacing=0.01, vertical_spacing=0.01
    )
    owners: list[str] = []
    first = next(iter(gallery.samples))
    for name, samples in gallery.samples.items():
        for number, sample in enumerate(samples[:most]):
            cloud = upright(sample.numpy(), up, turn)
            normals, spacing = normals_and_spacing(cloud)
            light, size = lit(cloud, normals), float(np.clip(110 * spacing, 2, 9))
            for piece in _pieces(gallery, name, number):
                x, y, z = cloud[piece.points].astype(np.float32).T
                marker = {
                    "size": size,
                    "color": light[piece.points].astype(np.float32),
                    "colorscale": piece.scale,
                    "cmin": 0,
                    "cmax": 1,
                }
                figure.add_trace(
                    go.Scatter3d(
                        x=x,
                        y=y,
                        z=z,
                        mode="markers",
                        marker=marker,
                        visible=name == first,
                        hoverinfo="name" if piece.part else "skip",
                        name=escape(piece.part or name),
                        legendgroup=escape(piece.part),
                        showlegend=False,
                    ),
                    row=number // columns + 1,
                    col=number % columns + 1,
                )
                owners.append(name)
        # A legend takes the colour of a trace's first point, which may lie in the shadow: these have none.
        for part, colour in zip(_parts(gallery, name), part_colours(gallery.parts), strict=False):
            entry = {"name": escape(part), "legendgroup": escape(part), "marker": {"color": colour, "size": 9}}
            figure.add_trace(go.Scatter3d(x=[None], y=[None], z=[None], mode="markers", visible=name == first, **entry))
            owners.append(name)
    _dress(figure, gallery, owners)
    write_turning(figure, path, gallery.name)


@dataclass(frozen=True)
class _Piece:
    """Points that are drawn alike: a whole cloud, or one of its parts."""

    part: str
    points: NDArray[np.bool_] | slice
    scale: list[tuple[float, str]]  # from shadow to light


def _pieces(gallery: Gallery, name: str, number: int) -> Iterator[_Piece]:
    if name not in gallery.marks:
        yield _Piece("", slice(None), [(at, to_hex(LIT(at))) for at in _STEPS])
    for index, (part, colour) in enumerate(zip(_parts(gallery, name), part_colours(gallery.parts), strict=False)):
        points = (gallery.marks[name].points[number] == index).numpy()
        yield _Piece(part, points, [(at, to_hex(surface_of(colour)(at))) for at in _STEPS])


def _parts(gallery: Gallery, name: str) -> tuple[str, ...]:
    return gallery.marks[name].names if name in gallery.marks else ()


def _dress(figure: object, gallery: Gallery, owners: list[str]) -> None:
    from plotly import graph_objects as go

    assert isinstance(figure, go.Figure)
    hidden = {"visible": False, "range": [-1.02, 1.02]}
    figure.update_scenes(
        xaxis=hidden,
        yaxis=hidden,
        zaxis=hidden,
        aspectmode="manual",
        aspectratio={"x": _ZOOM, "y": _ZOOM, "z": _ZOOM},
        camera={"eye": {"x": 0.52, "y": 0.58, "z": 0.35}, "projection": {"type": "orthographic"}},
        bgcolor="white",
    )
    about = f"{escape(gallery.about)} · turn with the mouse"
    heading = f"<b>{escape(gallery.name)}</b>  <span style='color:{FAINT};font-size:13px'>{about}</span>"
    figure.update_layout(
        title={"text": heading, "x": 0.02, "font": {"size": 16, "color": INK}},
        margin={"l": 10, "r": 10, "t": 60, "b": 10},
        showlegend=bool(gallery.marks),
        legend={"itemsizing": "constant", "y": 0.98},
        paper_bgcolor="white",
        font={"family": "system-ui, sans-serif", "color": INK},
    )
    if len(gallery.samples) > 1:
        buttons = [
            {"label": escape(name), "method": "restyle", "args": [{"visible": [owner == name for owner in owners]}]}
            for name in gallery.samples
        ]
        menu = {"buttons": buttons, "x": 0.99, "xanchor": "right", "y": 1.0, "yanchor": "bottom", "bgcolor": "white"}
        figure.update_layout(updatemenus=[menu])
