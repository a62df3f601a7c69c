"""A page of clouds to turn, lit as if they were surfaces, class by class."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.colors import to_hex

from fedstill.report.figure import Figure, Key
from fedstill.report.page import PageSection
from fedstill.report.pictures.cloud_views import lit, normals_and_spacing, upright
from fedstill.report.pictures.colours import LIT, part_colours, surface_of
from fedstill.report.pictures.gallery import Gallery
from fedstill.report.pictures.viewer_page import TURNING, write_samples_page

_MOST = 6  # samples of a class: each has all its points in the page
_STEPS = 16  # of light
_VIEW = {"turn": 3.87, "tilt": -0.42}  # from the corner before the right side, and a little from above


def draw_turntable(gallery: Gallery, path: Path, up: str = "z", turn: float = 0.0) -> None:
    """A section for each class, with a figure for each sample."""
    sections = [
        PageSection(
            f"class-{place}",
            name,
            [_figure(gallery, place, name, number, up, turn) for number in range(min(_MOST, len(samples)))],
        )
        for place, (name, samples) in enumerate(gallery.samples.items())
    ]
    write_samples_page(path, gallery.name, f"{gallery.about}. {TURNING}", sections)


def _figure(gallery: Gallery, place: int, name: str, number: int, up: str, turn: float) -> Figure:
    cloud = upright(gallery.samples[name][number].numpy(), up, turn)
    parts: tuple[str, ...] = ()
    labels = np.zeros(len(cloud), np.int64)
    if name in gallery.marks:
        parts, labels = gallery.marks[name].names, gallery.marks[name].points[number].numpy()
    colours = part_colours(gallery.parts)[: len(parts)]
    surfaces = [surface_of(colour) for colour in colours] or [LIT]
    normals, spacing = normals_and_spacing(cloud)
    light = np.rint(lit(cloud, normals) * (_STEPS - 1)).astype(np.int64)
    said = f"{len(cloud):,} points" + (f" in {len(parts)} parts: {', '.join(parts)}" if parts else "")
    trace = {
        "type": "cloud",
        "points": [[round(value, 3) for value in point] for point in cloud.tolist()],
        "labels": (_STEPS * labels + light).tolist(),
        "colours": [to_hex(surface(step / (_STEPS - 1))) for surface in surfaces for step in range(_STEPS)],
        "radius": round(float(np.clip(0.45 * spacing, 0.012, 0.04)), 4),
        "view": _VIEW,
    }
    return Figure(
        f"cloud-{place}-{number}",
        f"{name} {number + 1}",
        f"Point cloud of {said}.",
        f"{said}.",
        [trace],
        {"height": 320},
        [Key(part, colour, shape="box") for part, colour in zip(parts, colours, strict=True)],
    )
