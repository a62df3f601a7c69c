"""The cost of dropout: runs that differ only in dropout, mitigation and seed, side by side.

One pair of figures for every dropout rate, accuracy and loss: without dropout, with dropout, and with replacement
clients.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from fedstill.core.numbers import capital, count, listed, share
from fedstill.devices.study_figures import LAST, tail, undisturbed
from fedstill.report import descriptions
from fedstill.report.facts import Facts, number
from fedstill.report.figure import DASHES, Figure, Key, axis, colour, dash, label, whole_axis

_NOBODY, _DROPPED, _REPLACED = "no dropout", "dropped", "replaced"
_SHARED = {"seed", "dropout", "mitigation"}  # the settings in which runs of a group may differ
_COLOURS = (6, 1, 0, 3, 2, 4, 5)  # in the order of ways: grey for no dropout, orange, blue
_METRICS = {"accuracy": "test accuracy", "loss": "test loss"}


@dataclass(frozen=True)
class Panel:
    """Runs of one dropout rate, by mitigation; beside them those without dropout."""

    name: str
    ways: Mapping[str, Sequence[Facts]]


def dropout_curves(runs: Sequence[Facts]) -> list[Figure]:
    """The figures of every group of runs that allows a comparison."""
    figures: list[Figure] = []
    groups = list(_groups(runs))
    for group in groups:
        panels = list(_panels(group))
        order = list(dict.fromkeys(way for panel in panels for way in panel.ways))
        where = f" ({_ground(group[0])})" if len(groups) > 1 else ""
        for panel in panels:
            for metric in _METRICS:
                found = _figure(f"dropout-{len(figures)}", panel, metric, order, _range(panels, metric), where)
                figures += [] if found is None else [found]
    return figures


def _groups(runs: Sequence[Facts]) -> Iterator[list[Facts]]:
    """Runs that agree in everything except seed, dropout and mitigation, if some have random dropout."""
    found: dict[str, list[Facts]] = {}
    for run in runs:
        found.setdefault(run.experiment.model_dump_json(exclude=_SHARED), []).append(run)
    for group in found.values():
        if any(True for _ in _panels(group)):
            yield group


def _panels(group: Sequence[Facts]) -> Iterator[Panel]:
    calm = [run for run in group if undisturbed(run.experiment)]
    by_rate: dict[str, list[Facts]] = {}
    for run in sorted(group, key=lambda run: _rate(run) or 0.0):
        if run.experiment.dropout.name != "none":
            by_rate.setdefault(_panel_name(run), []).append(run)
    for name, lossy in by_rate.items():
        several = len({_rest(run) for run in lossy}) > 1
        ways: dict[str, list[Facts]] = {_NOBODY: calm} if calm else {}
        for run in sorted(lossy, key=lambda run: run.experiment.dropout.settings.model_dump()["replace"]):
            ways.setdefault(_way(run, several), []).append(run)
        if len(ways) > 1:
            yield Panel(name, ways)


def _rate(run: Facts) -> float | None:
    return run.experiment.dropout.settings.model_dump().get("rate")


def _panel_name(run: Facts) -> str:
    kind, rate = run.experiment.dropout.name, _rate(run)
    if rate is None:
        return f"dropout by {kind}"
    return f"{share(rate, 0)} dropout" + ("" if kind == "independent" else f", {kind}")


def _way(run: Facts, several: bool) -> str:
    """The name of the mitigation; with further settings only if several have to be distinguished."""
    way = _REPLACED if run.experiment.dropout.settings.model_dump()["replace"] else _DROPPED
    told = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in json.loads(_rest(run)).items())
    return f"{way} ({told})" if several and told else way


def _rest(run: Facts) -> str:
    """Other settings of dropout and mitigation that differ from the defaults."""
    changed = descriptions.changed_settings(run.experiment.dropout)
    rest = {name: value for name, value in changed.items() if name not in ("rate", "replace")}
    mitigation = run.experiment.mitigation
    return json.dumps(rest | ({} if mitigation.name == "none" else {"mitigation": descriptions.part(mitigation)}))


def _ground(run: Facts) -> str:
    experiment = run.experiment
    return f"{experiment.method.name}, {experiment.data}, {descriptions.part(experiment.participation)}"


def _figure(
    id: str, panel: Panel, metric: str, order: Sequence[str], limits: list[float] | None, where: str
) -> Figure | None:
    if limits is None:
        return None
    data: list[dict[str, Any]] = []
    keys: list[Key] = []
    for way, runs in panel.ways.items():
        index = order.index(way)
        curves = [_curve(run, metric) for run in runs]
        means = _mean(curves)
        if not means:
            continue
        tint, form = colour(_COLOURS[index % len(_COLOURS)]), ".1%" if metric == "accuracy" else ".3f"
        own = [len(data)]
        line = {"color": tint, "dash": dash(index), "width": 2.25}
        if len(runs) > 1:
            faint = {"color": tint, "size": 4, "opacity": 0.4}
            points = [point for curve in curves for point in curve.items()]
            data.append(_trace(points, "markers", marker=faint, hovertemplate=_hover(way, "round %{x}, a seed", form)))
            own.append(len(data))
        data.append(_trace(list(means.items()), "lines", line=line, hovertemplate=_hover(way, "round %{x}", form)))
        keys.append(Key(way, tint, tuple(own), DASHES[dash(index)]))
    seeds = [len(runs) for runs in panel.ways.values()]
    told = f"Mean accuracy of the last {LAST} evaluations: {listed(_ends(panel))}."
    most = ("" if min(seeds) == max(seeds) else "up to ") + count(max(seeds), "seed")
    lines = f"Lines are means over {most}, dots single seeds." if max(seeds) > 1 else "One seed."
    return Figure(
        id,
        f"{capital(_METRICS[metric])}, {panel.name}{where}",
        f"{capital(_METRICS[metric])} by round with {panel.name}. {told}",
        f"{lines} {told}" if metric == "accuracy" else f"Loss on the test data after each round. {lines}",
        data,
        {
            "height": 300,
            "xaxis": whole_axis("round", max(max(trace["x"]) for trace in data)),
            "yaxis": axis(_METRICS[metric], range=limits, **({"tickformat": ".0%"} if metric == "accuracy" else {})),
        },
        keys,
    )


def _hover(way: str, when: str, form: str) -> str:
    return f"{label(way)}, {when}: %{{y:{form}}}<extra></extra>"


def _ends(panel: Panel) -> list[str]:
    """The final accuracy of each mitigation, with its spread over seeds."""
    told = []
    for way, runs in panel.ways.items():
        found = [end for run in runs if (end := tail(run.journal)) is not None]
        if found:
            spread = f"\u00a0±\u00a0{100 * stdev(found):.1f}" if len(found) > 1 else ""
            told.append(f"{way} {100 * fmean(found):.1f}{spread}\u00a0%")
    return told


def _range(panels: Sequence[Panel], metric: str) -> list[float] | None:
    """The same range for all rates, for comparability; None: nothing to draw."""
    values = [
        value
        for panel in panels
        for runs in panel.ways.values()
        for run in runs
        for value in _curve(run, metric).values()
    ]
    if not values:
        return None
    margin = 0.04 * (max(values) - min(values)) or 0.01
    return [min(values) - margin, max(values) + margin]


def _curve(run: Facts, metric: str) -> dict[int, float]:
    found = {record.round: number(record.metrics.get(metric)) for record in run.journal}
    return {round: value for round, value in found.items() if value is not None}


def _mean(curves: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """The mean over the seeds that have a value after a round."""
    rounds = sorted({round for curve in curves for round in curve})
    return {round: fmean(curve[round] for curve in curves if round in curve) for round in rounds}


def _trace(points: Sequence[tuple[int, float]], mode: str, **more: Any) -> dict[str, Any]:
    return {"type": "scatter", "mode": mode, "x": [x for x, _ in points], "y": [y for _, y in points], **more}
