"""Figures about detectors: average precision by class, and precision against recall."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedstill.core.numbers import listed, share
from fedstill.detection.boxes import THRESHOLDS
from fedstill.detection.report_facts import Judged, Point, envelope, mean_envelope
from fedstill.report.figure import DASHES, SERIES, Figure, Key, axis, colour, curve, dash, label

MEAN = "var(--ink)"
_HATCHES = ("", "/", "x", ".", "\\", "-")  # of bars, as often as colours have come before
_BAR, _GAP, _FRAME = 13, 12, 84  # pixels: a bar, what is between classes, what is around all
_TOLD = 12  # classes that a sentence lists


def precision_by_class(judged: Sequence[Judged]) -> list[Figure]:
    """Bars; for one run both thresholds in one figure, for several one figure per threshold."""
    if len(judged) == 1:
        (one,) = judged
        series = [(f"IoU above {threshold}", one, row, row) for row, threshold in enumerate(THRESHOLDS)]
        return [_bars("ap", "Average precision by class", series)]
    return [
        _bars(
            f"ap-{round(100 * threshold)}",
            f"Average precision by class, IoU above {threshold}",
            [(one.title, one, row, one.index) for one in judged],
        )
        for row, threshold in enumerate(THRESHOLDS)
    ]


def _bars(id: str, title: str, series: Sequence[tuple[str, Judged, int, int]]) -> Figure:
    """Grouped bars for each class: a series has a name, a run, a threshold and a colour."""
    first = series[0][1]
    objects = first.objects()
    order = [number for number in range(len(first.classes)) if objects[number]]
    high = 0.84 / len(series)  # of a class's place
    data, keys, told = [], [], []
    for place, (name, one, threshold, index) in enumerate(series):
        precisions = one.precisions(threshold)
        values = [precisions[number] or 0.0 for number in order]
        hatch = _HATCHES[index // SERIES % len(_HATCHES)] if len(series) > 2 else ("", "/")[place % 2]
        pattern = {"shape": [hatch] * len(values), "size": 7, "solidity": 0.35}
        keys.append(_bar_key(name, index, hatch, place))
        data.append(
            {
                "type": "bar",
                "orientation": "h",
                "x": values,
                "y": [row + (place - (len(series) - 1) / 2) * high for row in range(len(order))],
                "width": 0.92 * high,
                "marker": {"color": [colour(index)] * len(values), "pattern": pattern},
                "text": [f" {100 * value:.0f}" for value in values],
                "textposition": "outside",
                "textfont": {"size": 10.5, "color": "var(--ink)"},
                "cliponaxis": False,
                "customdata": [f"{label(first.classes[number])}, {label(name)}" for number in order],
                "hovertemplate": "%{customdata}: %{x:.1%}<extra></extra>",
            }
        )
        ranked = sorted(zip(values, order, strict=True), reverse=True)
        named = [f"{first.classes[number]} {share(value, 0)}" for value, number in ranked[:_TOLD]]
        told.append(f"{name}: {listed(named)}, mean {share(one.mean(threshold), 1)}.")
    names = [f"{label(first.classes[number])} ({objects[number]:,})" for number in order]
    return Figure(
        id,
        title,
        f"Average precision by class. {' '.join(told)}",
        "Area under precision as a function of recall, in test scenes, of the model after the last round; in brackets,"
        " how many objects there are. Bars stand in the order of the key. " + _means(series),
        data,
        {
            "height": _FRAME + len(order) * (len(series) * _BAR + _GAP),
            "xaxis": axis("average precision", tickformat=".0%", range=[0, 1.08], tickvals=[0, 0.25, 0.5, 0.75, 1]),
            "yaxis": {
                "tickvals": list(range(len(order))),
                "ticktext": names,
                "range": [len(order) - 0.5, -0.5],
                "showgrid": False,
            },
            "bargap": 0,
        },
        keys,
    )


def _means(series: Sequence[tuple[str, Judged, int, int]]) -> str:
    told = [f"{share(one.mean(threshold), 1)} for “{name}”" for name, one, threshold, _ in series]
    return f"Means over classes: {listed(told)}."


def _bar_key(name: str, index: int, hatch: str, place: int) -> Key:
    if hatch:
        return Key(name, colour(index), (place,), shape="hatched", symbol=hatch)
    return Key(name, colour(index), (place,), shape="box")


def precision_by_recall(judged: Sequence[Judged]) -> list[Figure]:
    """One figure per threshold: for one run all classes and their mean, for several the means."""
    return [
        _classes(judged[0], row) if len(judged) == 1 else _means_of_runs(judged, row) for row in range(len(THRESHOLDS))
    ]


def _classes(one: Judged, threshold: int) -> Figure:
    data: list[dict[str, Any]] = []
    keys, told = [], []
    for number, steps in enumerate(one.steps[threshold]):
        points = envelope(steps)
        if not points:
            continue
        name = one.classes[number]
        keys.append(Key(name, colour(number), (len(data),), DASHES[dash(number)]))
        data.append(_line(number, points, name))
        told.append(f"{name} to a recall of {share(points[-1][0], 0)}")
    if data:
        thick = {"line": {"color": MEAN, "dash": "solid", "width": 3.5}}
        keys.append(Key("mean over classes", MEAN, (len(data),)))
        data.append(_line(0, mean_envelope(one.steps[threshold]), "mean over classes") | thick)
    missed = [
        name
        for name, steps in zip(one.classes, one.steps[threshold], strict=True)
        if steps.truths and not steps.right.sum()
    ]
    silent = f" Nothing right was found of {listed(missed)}." if missed else ""
    return _curves(threshold, data, keys, f"{'; '.join(told) or 'nothing right was found'}.{silent}", silent)


def _means_of_runs(judged: Sequence[Judged], threshold: int) -> Figure:
    data: list[dict[str, Any]] = []
    keys, told = [], []
    for one in judged:
        points = mean_envelope(one.steps[threshold])
        if not points:
            continue
        keys.append(Key(one.title, colour(one.index), (len(data),), DASHES[dash(one.index)]))
        data.append(_line(one.index, points, one.title))
        told.append(f"“{one.title}” has a mean average precision of {share(one.mean(threshold), 1)}")
    silent = [f"“{one.title}”" for one in judged if not mean_envelope(one.steps[threshold])]
    nothing = f" Of {listed(silent)} nothing was right." if silent else ""
    return _curves(threshold, data, keys, f"{'; '.join(told)}.{nothing}", f" Means over classes.{nothing}")


def _line(index: int, points: Sequence[Point], name: str) -> dict[str, Any]:
    rounded = [(round(recall, 4), round(precision, 4)) for recall, precision in points]
    hover = f"{label(name)}: recall %{{x:.1%}}, precision %{{y:.1%}}<extra></extra>"
    return curve(index, rounded, name=label(name), mode="lines", hovertemplate=hover)


def _curves(threshold: int, data: list[dict[str, Any]], keys: list[Key], told: str, caption: str) -> Figure:
    above = THRESHOLDS[threshold]
    whole = {"tickformat": ".0%", "range": [0, 1.02]}
    return Figure(
        f"recall-{round(100 * above)}",
        f"Precision by recall, IoU above {above}",
        f"Precision as a function of recall, a box being right above an IoU of {above}: {told}",
        "Of what was found, surest first, the share that is right, against the share of objects found by then."
        f" Precision is the best at this recall or any higher one, and average precision the area below.{caption}",
        data,
        {"height": 360, "xaxis": axis("recall", **whole), "yaxis": axis("precision", **whole)},
        keys,
    )
