"""What a client gains and forgets epoch by epoch: the curve from which lambda and the number of epochs are chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from fedstill.core.numbers import listed, points
from fedstill.queries.guard import FRACTIONS
from fedstill.queries.query import Answered
from fedstill.report.figure import ALARM, DASHES, QUIET, Figure, Key, Shape, axis, colour, dash, label, level, symbol

FIRST, LAST = "features", "head"  # the phases, as observers are told them


@dataclass(frozen=True)
class CurvePoint:
    """The gain in queried classes and the forgetting of own ones after an epoch, on test data."""

    query_weight: float
    phase: str
    epoch: int
    gain: float
    forgetting: float


@dataclass
class GainCurve:
    """The points of all attempts, each with its lambda; an attempt starts with the first epoch of the first phase."""

    query_weight: float
    fate: Answered  # of the model before
    points: list[CurvePoint] = field(default_factory=list)
    attempts: int = 0

    def add(self, phase: str, epoch: int, recalls: Tensor) -> bool:
        """Add an epoch; whether it is the first of an attempt."""
        starts = (phase, epoch) == (FIRST, 1) or not self.points
        self.attempts += starts
        metrics = Answered(self.fate.before, recalls, self.fate.counts, self.fate.query).metrics()
        weight = FRACTIONS[self.attempts - 1] * self.query_weight
        self.points.append(CurvePoint(weight, phase, epoch, metrics["gain"], metrics["forgetting"]))
        return starts


def gain_curve(
    id: str,
    title: str,
    curve: Sequence[CurvePoint],
    chosen: tuple[float, str, int] | None = None,
    limit: float | None = None,
) -> Figure:
    """Gain upwards, less forgetting to the right, one line for each lambda and phase; `limit` is a loss in points."""
    data: list[dict[str, Any]] = []
    keys: list[Key] = []
    told = []
    for number, weight in enumerate(dict.fromkeys(point.query_weight for point in curve)):
        for phase in (FIRST, LAST):
            own = [point for point in curve if (point.query_weight, point.phase) == (weight, phase)]
            if not own:
                continue
            index = 2 * number + (phase == LAST)
            what = f"λ {weight:g}, {'whole model' if phase == FIRST else 'head alone'}"
            shape: Shape = "symbol" if phase == FIRST else "line"
            keys.append(Key(what, colour(index), (len(data),), DASHES[dash(index)], shape, symbol(index)))
            data.append(_drawn(own, index, what))
            last = own[-1]
            told.append(f"{what} ends at a gain of {points(last.gain)} and a forgetting of {points(last.forgetting)}")
    for point in curve:
        if chosen == (point.query_weight, point.phase, point.epoch):
            mark = {"color": ALARM, "symbol": "star", "size": 16}
            keys.append(Key("kept", ALARM, (len(data),), shape="symbol", symbol="star"))
            hover = f"kept: epoch {point.epoch}, forgetting %{{x:.1%}}, gain %{{y:.1%}}<extra></extra>"
            data.append(_marks([point], mark, hover))
    shapes = []
    if limit is not None:
        shapes.append(level(-limit / 100, QUIET, "dash", upright=True))
        keys.append(Key(f"limit of {limit:g} points, on held-out samples", QUIET, dash="7 4"))
    return Figure(
        id,
        title,
        f"Gain in classes asked for against forgetting of own classes, epoch by epoch: {listed(told)}.",
        "One point for each epoch, on test data. Higher: more learnt of the classes asked for. Further right: less"
        " forgotten. Fewer epochs or a smaller λ (query_weight) move along the lines; max_forgetting chooses both.",
        data,
        {
            "height": 400,
            "xaxis": axis("forgetting", tickformat=".0%"),
            "yaxis": axis("gain in classes asked for", tickformat=".0%"),
            "shapes": shapes,
        },
        keys,
    )


def _drawn(own: Sequence[CurvePoint], index: int, what: str) -> dict[str, Any]:
    """The epochs of a phase: points of the first phase, which jump about, and a line through those of the last."""
    look = {"color": colour(index), "symbol": symbol(index), "size": 7}
    hover = f"{label(what)}, epoch %{{text}}: forgetting %{{x:.1%}}, gain %{{y:.1%}}<extra></extra>"
    if own[0].phase == FIRST:
        return _marks(own, {**look, "opacity": 0.5}, hover)
    line = {"color": colour(index), "dash": dash(index), "width": 1.5}
    return {**_marks(own, look, hover), "mode": "lines+markers", "line": line}


def _marks(own: Sequence[CurvePoint], marker: dict[str, Any], hover: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [point.forgetting for point in own],
        "y": [point.gain for point in own],
        "text": [str(point.epoch) for point in own],
        "marker": marker,
        "hovertemplate": hover,
    }
