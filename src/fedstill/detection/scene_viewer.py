"""Scenes to turn with the mouse, with their boxes: one HTML file that needs nothing else, not even a network."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.colors import to_hex

from fedstill.core.errors import InputError
from fedstill.detection.scene_picture import EDGES, scene_name, shades
from fedstill.detection.scenes import Scenes, corners
from fedstill.report.pictures.colours import FAINT, INK, box_colours
from fedstill.report.pictures.viewer_page import write_turning

_MOST = 12  # scenes of a page: each has all its points in it


def draw_scene_turntable(scenes: Scenes, path: Path, name: str, about: str = "") -> None:
    """One scene at a time, chosen by a menu; points in boxes have the colour of their class."""
    from plotly import graph_objects as go  # here, because it takes a second that other commands need not wait

    if len(scenes) > _MOST:
        raise InputError(f"a page shows up to {_MOST} scenes, not {len(scenes)}: lower --count, or draw a .png")
    colours = box_colours(len(scenes.class_names))
    figure = go.Figure()
    owners: list[int] = []
    for row in range(len(scenes)):
        for trace in _traces(scenes, row, colours):
            figure.add_trace(go.Scatter3d(visible=row == 0, **trace))
            owners.append(row)
    _dress(figure, scenes, owners, name, about)
    write_turning(figure, path, name)


def _traces(scenes: Scenes, row: int, colours: list[str]) -> list[dict[str, Any]]:
    """The cloud, then the boxes of each class that is there, as lines with gaps between them."""
    cloud = scenes.points[row].double().numpy()
    boxes, labels = (part.numpy() for part in scenes.boxes_of(row))
    boxes = boxes.astype(np.float64)
    x, y, z = cloud.astype(np.float32).T
    size = float(np.clip(150 / len(cloud) ** 0.5, 1.2, 4.0))
    light = [to_hex(shade) for shade in shades(cloud, boxes, labels, colours)]
    marker = {"size": size, "color": light}
    traces: list[dict[str, Any]] = [
        {"x": x, "y": y, "z": z, "mode": "markers", "marker": marker, "hoverinfo": "skip", "showlegend": False}
    ]
    ends = corners(boxes)
    for label in sorted(set(labels.tolist())):
        own = ends[labels == label]
        lines = np.full((len(own), len(EDGES), 3, 3), np.nan, np.float32)  # of each edge two ends and a gap
        lines[:, :, :2] = own[:, EDGES]
        x, y, z = lines.reshape(-1, 3).T
        title = escape(scenes.class_names[label]) + (f" ({len(own)})" if len(own) > 1 else "")
        line = {"color": colours[label], "width": 5}
        traces.append({"x": x, "y": y, "z": z, "mode": "lines", "line": line, "name": title, "hoverinfo": "name"})
    return traces


def _dress(figure: Any, scenes: Scenes, owners: list[int], name: str, about: str) -> None:
    hidden = {"visible": False, "showspikes": False}
    figure.update_layout(
        scene={
            "xaxis": hidden,
            "yaxis": hidden,
            "zaxis": hidden,
            "aspectmode": "data",
            "camera": {"eye": {"x": -0.9, "y": -1.05, "z": 1.1}, "center": {"x": 0, "y": 0, "z": -0.15}},
            "bgcolor": "white",
        },
        title={
            "text": f"<b>{escape(name)}</b>  <span style='color:{FAINT};font-size:13px'>"
            f"{escape(about)} · turn with the mouse</span>",
            "x": 0.02,
            "font": {"size": 16, "color": INK},
        },
        margin={"l": 10, "r": 10, "t": 60, "b": 10},
        showlegend=True,
        legend={"itemsizing": "constant", "y": 0.98, "font": {"size": 14}},
        paper_bgcolor="white",
        font={"family": "system-ui, sans-serif", "color": INK},
    )
    if len(scenes) > 1:
        buttons = [
            {
                "label": escape(scene_name(scenes, row)),
                "method": "restyle",
                "args": [{"visible": [owner == row for owner in owners]}],
            }
            for row in range(len(scenes))
        ]
        menu = {"buttons": buttons, "x": 0.99, "xanchor": "right", "y": 1.0, "yanchor": "bottom", "bgcolor": "white"}
        figure.update_layout(updatemenus=[menu])
