"""Figures about clients' queries: gain and forgetting by method, by class and by epoch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from fedstill.core.numbers import listed, points, share
from fedstill.queries.probe import Probed
from fedstill.report.figure import (
    DASHES,
    QUIET,
    Figure,
    Key,
    axis,
    colour,
    curve,
    dash,
    label,
    level,
    lone,
    symbol,
    whole_axis,
)

_PERCENT = {"tickformat": ".0%"}
_ROLES = {"asked for": "var(--series-2)", "own": "var(--series-1)", "other": "var(--series-7)"}  # in this order
_SHADES = [[step / 3, f"var(--shade-{step})"] for step in range(4)]
_NUMBERS = 12  # up to this many classes the cells have space for numbers
_ROW = 24  # pixels of a line
_LETTERS = 18  # of a name


@dataclass(frozen=True)
class Balance:
    """The gain and forgetting of a method; one pair for every seed."""

    name: str
    pairs: Sequence[tuple[float, float]]
    index: int | None = None  # fixes its colour in every figure; else its position among these

    @property
    def mean(self) -> tuple[float, float]:
        return fmean(lost for lost, _ in self.pairs), fmean(gained for _, gained in self.pairs)


def gain_against_forgetting(id: str, title: str, balances: Sequence[Balance], path: bool = False) -> Figure:
    """Gain upwards, less forgetting to the right; `path` connects the values of a setting in their order."""
    data: list[dict[str, Any]] = []
    keys: list[Key] = []
    if path:
        line = {"color": QUIET, "dash": "dot"}
        means = [one.mean for one in balances]
        data.append(_scatter([x for x, _ in means], [y for _, y in means], "lines", line=line, hoverinfo="skip"))
    for place, one in enumerate(balances):
        number = place if one.index is None else one.index
        own, (lost, gained) = [len(data)], one.mean
        look = {"color": colour(number), "symbol": symbol(number)}
        hover = _balance_hover(one.name)
        data.append(_scatter([lost], [gained], "markers", marker={**look, "size": 12}, hovertemplate=hover))
        if len(one.pairs) > 1:
            own.append(len(data))
            x, y = zip(*one.pairs, strict=True)
            faint = {**look, "size": 6, "opacity": 0.5}
            hover = _balance_hover(f"{one.name}, a seed")
            data.append(_scatter(x, y, "markers", marker=faint, hovertemplate=hover))
        keys.append(Key(one.name, colour(number), tuple(own), shape="symbol", symbol=symbol(number)))
    told = [f"{one.name} gains {points(one.mean[1])} and forgets {points(one.mean[0])}" for one in balances]
    seeds = max(len(one.pairs) for one in balances)
    x, y = zip(*(pair for one in balances for pair in one.pairs), strict=True)
    return Figure(
        id,
        title,
        f"Gain in classes asked for against forgetting of clients' own: {listed(told)}.",
        "Higher: more learnt of the classes asked for. Further right: less forgotten of a client's own."
        + (" Large marks are means, small ones seeds." if seeds > 1 else ""),
        data,
        {
            "height": 380,
            "xaxis": axis("forgetting", **_PERCENT, **lone(x)),
            "yaxis": axis("gain in classes asked for", **_PERCENT, **lone(y)),
        },
        keys,
    )


def _balance_hover(name: str) -> str:
    return f"{label(name)}: forgetting %{{x:.1%}}, gain %{{y:.1%}}<extra></extra>"


def probe_figure(id: str, title: str, probed: Probed) -> Figure:
    """Two maps side by side: the classes that clients have, and those that their models reveal on noise."""
    rows = list(range(len(probed.clients)))
    numbers = len(probed.names) <= _NUMBERS
    names = [label(name) for name in probed.names]
    ticks = {"tickvals": rows, "range": [len(rows) - 0.5, -0.5], "showgrid": False}
    across = _across(probed.names)
    errors = [f"{error:.3f}" for error in probed.errors]
    found = (
        f"By the rule {probed.rule.name} ({probed.rule.setting} {probed.rule.value:g}) the probe finds"
        f" {share(probed.recall, 0)} of the classes that clients have samples of, and {share(probed.precision, 0)} of"
        " those it finds are theirs."
    )
    return Figure(
        id,
        title,
        f"Share of each class in clients' data, and in what their models say of noise. {found}",
        "Left: the share of each class in a client's samples (%). Right: what its model says of noise, on average, with"
        f" the mean squared error over classes at the side. {found}",
        [
            _map(names, rows, probed.true.tolist(), "x", "y", numbers, "of its samples"),
            _map(names, rows, probed.guessed.tolist(), "x2", "y2", numbers, "said of noise"),
        ],
        {
            "height": 130 + max(80, _ROW * len(rows)),
            "xaxis": axis("samples", domain=[0, 0.46], **across),
            "yaxis": axis("client", ticktext=[str(client) for client in probed.clients], **ticks),
            "xaxis2": axis("said of noise", domain=[0.54, 1], anchor="y2", **across),
            "yaxis2": axis("error", ticktext=errors, anchor="x2", side="right", **ticks),
        },
        width=130 + 2 * (19 if numbers else 9) * len(names) if len(names) < 40 else 900,
    )


def offered_figure(
    id: str, title: str, names: Sequence[str], classes: Sequence[str], probed: Sequence[Sequence[float]]
) -> Figure:
    """The classes that models reveal on noise, where the data of their owners is not known."""
    rows, numbers = list(range(len(names))), len(classes) <= _NUMBERS
    best = [
        f"{name}: {classes[max(range(len(row)), key=row.__getitem__)]}" for name, row in zip(names, probed, strict=True)
    ]
    return Figure(
        id,
        title,
        f"Mean output of each model on noise, in which the largest class is, of {listed(best)}.",
        "What each model says of noise, on average (%): the classes that it knows. The data behind it is not known.",
        [_map([label(name) for name in classes], rows, probed, "x", "y", numbers, "said of noise")],
        {
            "height": 130 + max(80, _ROW * len(rows)),
            "xaxis": axis("said of noise", **_across(classes)),
            "yaxis": axis(
                "model",
                ticktext=[label(_short(name)) for name in names],
                tickvals=rows,
                range=[len(rows) - 0.5, -0.5],
                showgrid=False,
            ),
        },
        width=230 + (19 if numbers else 9) * len(classes) if len(classes) < 40 else 900,
    )


def recall_map(
    id: str, title: str, classes: Sequence[str], recalls: Mapping[str, Sequence[float]], wanted: str
) -> Figure:
    """One row for each model of a client, one column for each of its classes and those it asks for."""
    rows, numbers = list(range(len(recalls))), len(classes) <= _NUMBERS
    means = [f"{name} {share(fmean(found), 1)}" for name, found in recalls.items()]
    cells = _map([label(name) for name in classes], rows, list(recalls.values()), "x", "y", numbers, "recalled")
    return Figure(
        id,
        title,
        f"Recall of each class by each model; the mean over these classes: {listed(means)}.",
        f"The share of test samples of each class that a model gets right (%). Asked for: {wanted}. Mean over these"
        f" classes: {listed(means)}.",
        [{**cells, "hovertemplate": "%{customdata}: %{z:.1%} recalled<extra></extra>"}],
        {
            "height": 130 + max(80, _ROW * len(rows)),
            "xaxis": axis("class", **_across(classes)),
            "yaxis": axis(
                "",
                ticktext=[label(name) for name in recalls],
                tickvals=rows,
                range=[len(rows) - 0.5, -0.5],
                showgrid=False,
            ),
        },
        width=min(900, 230 + (40 if numbers else 12) * len(classes)),
    )


def _across(classes: Sequence[str]) -> dict[str, Any]:
    """An axis of classes, which are identified by position: truncated names could coincide."""
    return {
        "tickvals": list(range(len(classes))),
        "ticktext": [label(_short(name)) for name in classes],
        "range": [-0.5, len(classes) - 0.5],
        "showgrid": False,
        "tickangle": -40 if max(map(len, classes)) > 3 else 0,
    }


def recall_changes(
    id: str,
    title: str,
    names: Sequence[str],
    before: Sequence[float],
    after: Sequence[float],
    own: Iterable[int],
    asked: Iterable[int],
) -> Figure:
    """One line per class, from its recall before to its recall after; colours show the role of the class."""
    held, wanted = set(own), set(asked)
    every = range(len(names))
    whose = ["asked for" if number in wanted else "own" if number in held else "other" for number in every]
    roles = {number: role for role in _ROLES for number in every if whose[number] == role}
    data: list[dict[str, Any]] = []
    for place, number in enumerate(roles):
        name, tint = label(names[number]), _ROLES[roles[number]]
        hover = f"{name} ({roles[number]}): {share(before[number], 1)} → {share(after[number], 1)}<extra></extra>"
        ends = [before[number], after[number]]
        data.append(_scatter(ends, [place] * 2, "lines", line={"color": tint}, hoverinfo="skip"))
        for end, mark in zip(ends, ("circle-open", "circle"), strict=True):
            marker = {"color": tint, "symbol": mark, "size": 11}
            data.append(_scatter([end], [place], "markers", marker=marker, hovertemplate=hover))
    told = [
        f"{names[number]} ({roles[number]}) from {share(before[number], 0)} to {share(after[number], 0)}"
        for number in roles
    ]
    there = [role for role in _ROLES if role in roles.values()]
    return Figure(
        id,
        title,
        f"Recall of each class before and after: {listed(told)}.",
        "Share of the test samples of each class that the client's model recognises, before (open) and after (filled).",
        data,
        {
            "height": 110 + _ROW * len(names),
            "xaxis": axis("recall", range=[-0.02, 1.02], **_PERCENT),
            "yaxis": {
                "tickvals": list(range(len(roles))),
                "ticktext": [label(_short(names[number])) for number in roles],
                "range": [len(roles) - 0.5, -0.5],
                "showgrid": True,
            },
        },
        [
            *(Key(_role(role), _ROLES[role], shape="box") for role in there),
            Key("before", QUIET, shape="open"),
            Key("after", QUIET, shape="symbol"),
        ],
    )


@dataclass(frozen=True)
class Course:
    """The course of one metric: before, after each epoch of the whole model, and of the head alone."""

    name: str
    before: float
    whole: Sequence[float]
    head: Sequence[float]

    @classmethod
    def heard(cls, name: str, before: float, told: Iterable[tuple[str, int, float]]) -> Course:
        """From recorded values: phase, epoch, value (see `transfer_loss.Watch`).

        >>> Course.heard("accuracy", 0.3, [("features", 1, 0.5), ("head", 1, 0.6), ("features", 2, 0.55)])
        Course(name='accuracy', before=0.3, whole=[0.5, 0.55], head=[0.6])
        """
        values = sorted(told)
        whole = [value for phase, _, value in values if phase == "features"]
        return cls(name, before, whole, [value for phase, _, value in values if phase == "head"])


def phases(id: str, title: str, courses: Sequence[Course]) -> Figure:
    """Values by epoch through both phases in sequence; epoch 0 is the value before."""
    first = max(len(course.whole) for course in courses)
    last = first + max(len(course.head) for course in courses)
    data: list[dict[str, Any]] = []
    keys: list[Key] = []
    told = []
    for number, course in enumerate(courses):
        values = list(enumerate([course.before, *course.whole]))
        values += [(first + epoch + 1, value) for epoch, value in enumerate(course.head)]
        hover = f"{label(course.name)}, epoch %{{x}}: %{{y:.1%}}<extra></extra>"
        keys.append(Key(course.name, colour(number), (len(data),), DASHES[dash(number)]))
        data.append(curve(number, values, name=label(course.name), hovertemplate=hover))
        ends = [f"{share(part[-1], 1)} after the {what}" for what, part in _parts(course) if part]
        told.append(f"{course.name} goes from {share(course.before, 1)} to {listed(ends)}")
    shapes = [level(first + 0.5, QUIET, "dot", upright=True)] if last > first else []
    if len(courses) == 1:
        shapes.append(level(courses[0].before, "var(--series-2)"))
        keys.append(Key("before", "var(--series-2)", dash="7 4"))
    return Figure(
        id,
        title,
        f"By epoch through both phases: {'; '.join(told)}.",
        f"Epoch 0 is the model before anybody was asked. The whole model learns up to epoch {first}; then its head is"
        " put back to what it was and learns by itself, right of the dotted line.",
        data,
        {
            "xaxis": whole_axis("epoch", last, range=[-0.5, last + 0.5]),
            "yaxis": axis("share of test samples recognised", rangemode="tozero", **_PERCENT),
            "shapes": shapes,
        },
        keys,
    )


def _parts(course: Course) -> list[tuple[str, Sequence[float]]]:
    return [("whole model has learnt", course.whole), ("head has", course.head)]


def _scatter(x: Sequence[Any], y: Sequence[Any], mode: str, **more: Any) -> dict[str, Any]:
    return {"type": "scatter", "mode": mode, "x": list(x), "y": list(y), **more}


def _map(
    names: Sequence[str],
    rows: Sequence[int],
    values: Sequence[Sequence[float]],
    x: str,
    y: str,
    numbers: bool,
    what: str,
) -> dict[str, Any]:
    return {
        "type": "heatmap",
        "x": list(range(len(names))),
        "y": list(rows),
        "xaxis": x,
        "yaxis": y,
        "z": [list(row) for row in values],
        "customdata": [list(names) for _ in rows],
        "text": [[f"{100 * value:.0f}" if value >= 0.005 else "" for value in row] for row in values],
        "texttemplate": "%{text}" if numbers else "",
        "textfont": {"size": 10},
        "colorscale": _SHADES,
        "zmin": 0,
        "zmax": 1,
        "showscale": False,
        "xgap": 1,
        "ygap": 1,
        "hovertemplate": f"client %{{y}}, %{{customdata}}: %{{z:.1%}} {what}<extra></extra>",
    }


def _role(role: str) -> str:
    return {"own": "client's own class", "asked for": "class asked for", "other": "neither"}[role]


def _short(name: str) -> str:
    """A name shortened to fit beside a figure.

    >>> _short("immature granulocytes (all kinds)")
    'immature granuloc…'
    """
    return name if len(name) <= _LETTERS else f"{name[: _LETTERS - 1]}…"
