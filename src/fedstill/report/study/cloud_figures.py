"""Point clouds to turn with the mouse or the arrow keys."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedstill.report.figure import Figure, Key, colour
from fedstill.report.study.extras import Cloud


def clouds(given: Sequence[Cloud]) -> list[Figure]:
    return [_figure(number, cloud) for number, cloud in enumerate(given)]


def _figure(number: int, cloud: Cloud) -> Figure:
    """Points are put into the unit sphere, and rounded: nobody sees the fifth digit, and every page carries it."""
    centred = cloud.points - cloud.points.mean(axis=0)
    scaled = centred / (np.linalg.norm(centred, axis=1).max() or 1.0)
    marks = np.zeros(len(scaled), dtype=int) if cloud.labels is None else cloud.labels
    found = sorted(set(marks.tolist()))
    names = {mark: cloud.names[mark] if 0 <= mark < len(cloud.names) else str(mark) for mark in found}
    labelled = cloud.labels is not None
    parts = f", in {len(found)} parts: {', '.join(names.values())}" if labelled else ""
    return Figure(
        f"cloud-{number}",
        cloud.title,
        f"Point cloud of {len(scaled):,} points{parts}.",
        f"{len(scaled):,} points{parts}. Drag to turn; arrow keys turn it too, + and \u2212 change its size.",
        [
            {
                "type": "cloud",
                "points": [[round(float(x), 3) for x in point] for point in scaled],
                "labels": [found.index(mark) for mark in marks.tolist()],
                "colours": [colour(index) for index in range(len(found))],
            }
        ],
        {"height": 320},
        [Key(names[mark], colour(index), shape="box") for index, mark in enumerate(found)] if labelled else [],
    )
