"""An interactive figure of scenes with boxes, rotated by mouse or arrow keys: ground truth and detections."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedstill.report.figure import DASHES, SERIES, Figure, Key, colour, dash

Floats = NDArray[np.float64]
HEIGHT = 470
LOWEST = 0.05  # scores below this are left out of a page
MOST_POINTS = 4096  # of a scene: more would only enlarge the page
TRUE, RIGHT, WRONG = 0, 1, 2  # the styles of boxes if the ground truth is known


@dataclass(frozen=True)
class Box:
    """A box with its class; for a detection, its score and the number of the true box it matches."""

    box: Sequence[float]  # centre, full sizes, heading
    kind: int
    score: float = 1.0
    owner: int | None = None


@dataclass(frozen=True)
class SceneView:
    """A scene and the known boxes in it."""

    name: str
    points: Floats
    truth: Sequence[Box] = ()


@dataclass(frozen=True)
class Finder:
    """A source of detections, scene by scene."""

    title: str
    found: Sequence[Sequence[Box]]


@dataclass(frozen=True)
class _Look:
    name: str
    colour: str
    dash: str
    width: float

    def key(self, number: int) -> Key:
        return Key(self.name, self.colour, (number,), DASHES[self.dash])

    def trace(self) -> dict[str, Any]:
        return {"colour": self.colour, "dash": DASHES[self.dash], "width": self.width}


_JUDGED = (
    _Look("true box", "var(--series-3)", "dash", 1.6),
    _Look("found, right", "var(--series-1)", "solid", 2.2),
    _Look("found, wrong", "var(--series-2)", "dot", 2.2),
)


def scene_figure(
    id: str,
    title: str,
    scenes: Sequence[SceneView],
    finders: Sequence[Finder],
    classes: Sequence[str],
    *,
    looks: Literal["judged", "classes"] = "judged",
    least: float = 0.5,
    sentence: str = "",
    caption: str = "",
    most: int = MOST_POINTS,
) -> Figure:
    """An interactive figure of scenes with true boxes and detections.

    Boxes are styled by correctness if the ground truth is known, and else by class; those with a score below `least`
    are hidden at first. Without finders only the true boxes are shown.
    """
    shown = [list(scene.truth) for scene in scenes] + [list(boxes) for finder in finders for boxes in finder.found]
    drawn = list(_JUDGED) if looks == "judged" else _by_class(shown, classes)
    numbers = {look.name: number for number, look in enumerate(drawn)}

    def look_of(box: Box, judged: int) -> int:
        return judged if looks == "judged" else numbers[classes[box.kind]]

    points = len(drawn)
    keys = [look.key(number) for number, look in enumerate(drawn)]
    trace = {
        "type": "scene",
        "scenes": [
            {
                "name": scene.name,
                "points": _rounded(thinned(scene.points, most), 2),
                "truth": [_written(box) | {"look": look_of(box, TRUE)} for box in scene.truth],
            }
            for scene in scenes
        ],
        "runs": [
            {
                "title": finder.title,
                "found": [
                    [
                        _written(box) | {"look": look_of(box, WRONG if box.owner is None else RIGHT)}
                        for box in boxes
                        if box.score >= LOWEST
                    ]
                    for boxes in finder.found
                ],
            }
            for finder in finders
        ],
        "classes": list(classes),
        "looks": [look.trace() for look in drawn],
        "ground": "var(--quiet)",
        "dots": points,
        "least": round(100 * least),
        "range": [round(100 * LOWEST), 99],
    }
    return Figure(
        id,
        title,
        sentence,
        f"{caption} Drag to turn; arrow keys turn it too, + and \u2212 change its size.".lstrip(),
        [trace],
        {"height": HEIGHT},
        [*keys, Key("points", "var(--quiet)", (points,), shape="symbol", symbol="circle")],
    )


def _by_class(shown: Sequence[Sequence[Box]], classes: Sequence[str]) -> list[_Look]:
    """A style for each class that occurs; after the last colour they repeat with another dash."""
    found = sorted({box.kind for boxes in shown for box in boxes if box.score >= LOWEST})
    return [_Look(classes[kind], colour(number), dash(number // SERIES), 2.2) for number, kind in enumerate(found)]


def _written(box: Box) -> dict[str, Any]:
    return {
        "box": [round(float(value), 3) for value in box.box],
        "class": box.kind,
        "score": round(box.score, 4),
        "owner": box.owner,
    }


def thinned(points: Floats, most: int = MOST_POINTS) -> Floats:
    """Evenly subsampled to the number that a page can contain."""
    chosen = np.linspace(0, len(points) - 1, min(most, len(points))).round().astype(int)
    some: Floats = points[chosen]
    return some


def _rounded(points: Floats, digits: int) -> list[list[float]]:
    return [[round(value, digits) for value in point] for point in points.tolist()]
