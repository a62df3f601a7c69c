"""Clouds to turn with the mouse: one HTML file that needs nothing else, not even a network."""

from __future__ import annotations

from html import escape
from pathlib import Path

import numpy as np

from fedstill.core.errors import FedstillError, InputError
from fedstill.core.files import write_atomically
from fedstill.data.colours import FAINT, INK, SURFACE
from fedstill.data.gallery import Gallery
from fedstill.data.views import lit, normals_and_spacing, upright

_SCENES = 6  # browsers keep few drawing contexts alive: as many samples at a time, and classes by a menu
_COLUMNS = 3
_ZOOM = 1.6  # so that clouds fill their scenes


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
    scale = [[place, colour] for place, colour in zip(np.linspace(0, 1, len(SURFACE)), SURFACE, strict=True)]
    for name, samples in gallery.samples.items():
        for number, sample in enumerate(samples[:most]):
            cloud = upright(sample.numpy(), up, turn)
            normals, spacing = normals_and_spacing(cloud)
            x, y, z = cloud.astype(np.float32).T
            marker = {
                "size": float(np.clip(110 * spacing, 2, 9)),
                "color": lit(cloud, normals).astype(np.float32),
                "colorscale": scale,
                "cmin": 0,
                "cmax": 1,
            }
            figure.add_trace(
                go.Scatter3d(
                    x=x, y=y, z=z, mode="markers", marker=marker, visible=name == first, hoverinfo="skip", name=name
                ),
                row=number // columns + 1,
                col=number % columns + 1,
            )
            owners.append(name)
    _dress(figure, gallery, owners)
    page = figure.to_html(
        include_plotlyjs=True, full_html=True, default_height="96vh", config={"displaylogo": False, "responsive": True}
    )
    page = page.replace("<head>", f"<head><title>{escape(gallery.name)}</title>", 1)
    try:
        write_atomically(path, page.encode())
    except FedstillError as error:
        raise InputError(f"{path} cannot be written: {error.__cause__}") from None


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
        showlegend=False,
        paper_bgcolor="white",
        font={"family": "system-ui, sans-serif", "color": INK},
    )
    if len(gallery.samples) > 1:
        buttons = [
            {"label": name, "method": "restyle", "args": [{"visible": [owner == name for owner in owners]}]}
            for name in gallery.samples
        ]
        menu = {"buttons": buttons, "x": 0.99, "xanchor": "right", "y": 1.0, "yanchor": "bottom", "bgcolor": "white"}
        figure.update_layout(updatemenus=[menu])
