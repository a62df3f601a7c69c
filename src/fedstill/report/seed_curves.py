"""Figures of accuracy and loss by round over seeds: of runs that differ in nothing else, the mean and the range."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from fedstill.core.numbers import count, share
from fedstill.report.facts import RunCourse, measured, number
from fedstill.report.figure import DASHES, Figure, Key, axis, colour, curve, dash, fitted, label, loss_axis, whole_axis
from fedstill.report.titles import titles

Span = tuple[int, float, float, float]  # a round with the mean, the lowest and the highest value over seeds
_CAPTION = (
    "Lines are means over runs that differ in their seed alone; bands reach from the lowest to the highest of"
    " them. With few seeds a range is narrower than what further seeds would show."
)


def seed_curves(runs: Sequence[RunCourse]) -> list[Figure]:
    """Nothing where no two runs differ in their seed alone, or nothing was measured twice."""
    groups = grouped(runs)
    drawn = _drawn(groups, {title: spread_by_round(group) for title, group in groups.items()}, "%{y:.2%}")
    measure = measured(runs)
    told = [
        f"“{title}” ends with {share(mean, 1)} ({share(low, 1)} to {share(high, 1)})."
        for title, (_, mean, low, high) in drawn.last.items()
    ]
    layout = {"yaxis": axis(f"test {measure}", tickformat=".0%", range=fitted(drawn.values))} if drawn.data else {}
    return drawn.figures(
        "accuracy-seeds",
        f"Test {measure} by round, over seeds",
        f"Test {measure} after each round: mean and range over seeds. {' '.join(told)}",
        layout,
    )


def loss_over_seeds(runs: Sequence[RunCourse]) -> list[Figure]:
    """The same of the training loss."""
    groups = grouped(runs)
    spans = {title: _spread([_losses(run) for run in group]) for title, group in groups.items()}
    drawn = _drawn(groups, spans, "%{y:.4f}")
    told = [
        f"“{title}” ends with {mean:.3f} ({low:.3f} to {high:.3f})."
        for title, (_, mean, low, high) in drawn.last.items()
    ]
    return drawn.figures(
        "loss-seeds",
        "Training loss by round, over seeds",
        f"Mean training loss of each round: mean and range over seeds. {' '.join(told)}",
        {"yaxis": loss_axis(drawn.values)},
    )


@dataclass
class _DrawnSeeds:
    """Curves with bands, and their key."""

    data: list[dict[str, Any]] = field(default_factory=list)
    keys: list[Key] = field(default_factory=list)
    last: dict[str, Span] = field(default_factory=dict)

    @property
    def values(self) -> list[float]:
        return [y for trace in self.data for y in trace["y"]]

    def figures(self, name: str, title: str, sentence: str, layout: dict[str, Any]) -> list[Figure]:
        """The one figure, or none."""
        if not self.data:
            return []
        rounds = whole_axis("round", max(span[0] for span in self.last.values()))
        return [Figure(name, title, sentence, _CAPTION, self.data, {"xaxis": rounds, **layout}, self.keys)]


def _drawn(groups: Mapping[str, Sequence[RunCourse]], spans: Mapping[str, Sequence[Span]], hover: str) -> _DrawnSeeds:
    """Empty where no group has several seeds."""
    shown = {title: one for title, one in spans.items() if len(one) > 1}
    drawn = _DrawnSeeds()
    if not any(len(groups[title]) > 1 for title in shown):
        return drawn
    for index, (title, one) in enumerate(shown.items()):
        several, first = len(groups[title]) > 1, len(drawn.data)
        traces = (first, first + 1) if several else (first,)
        name = f"{title} ({count(len(groups[title]), 'seed')})"
        drawn.keys.append(Key(name, colour(index), traces, DASHES[dash(index)]))
        template = f"{label(title)}, round %{{x}}: {hover}<extra></extra>"
        drawn.data.append(curve(index, [(at, mean) for at, mean, _, _ in one], name=title, hovertemplate=template))
        if several:
            drawn.data.append(_band(index, title, one))
        drawn.last[title] = one[-1]
    return drawn


def grouped(runs: Sequence[RunCourse]) -> dict[str, list[RunCourse]]:
    """Runs that differ in their seed alone, one for each seed, by what tells the groups apart."""
    found: dict[str, dict[int, RunCourse]] = {}
    for run in runs:
        alike = run.experiment.model_copy(update={"seed": 0})
        found.setdefault(alike.model_dump_json(exclude={"teachers"}), {}).setdefault(run.experiment.seed, run)
    first = [next(iter(group.values())).experiment.model_copy(update={"seed": 0}) for group in found.values()]
    names = titles(first, [str(number) for number in range(len(first))])
    return {name: list(group.values()) for name, group in zip(names, found.values(), strict=True)}


def spread_by_round(runs: Sequence[RunCourse]) -> list[Span]:
    """The rounds that all of these runs have measured."""
    return _spread([run.curve for run in runs])


def _spread(courses: Sequence[Sequence[tuple[int, float]]]) -> list[Span]:
    curves = [dict(course) for course in courses]
    rounds = [round for round in curves[0] if all(round in one for one in curves)]
    scores = {round: [one[round] for one in curves] for round in rounds}
    return [(round, fmean(values), min(values), max(values)) for round, values in scores.items()]


def _losses(run: RunCourse) -> list[tuple[int, float]]:
    """The sum of all terms, by round."""
    sums = [(record.round, number(sum(record.loss.values()))) for record in run.journal if record.loss]
    return [(round, value) for round, value in sums if value is not None]


def _band(index: int, title: str, spans: Sequence[Span]) -> dict[str, Any]:
    """The area between the lowest and the highest, there and back again."""
    there, back = [(at, high) for at, _, _, high in spans], [(at, low) for at, _, low, _ in reversed(spans)]
    return {
        "type": "scatter",
        "mode": "none",
        "name": title,
        "x": [at for at, _ in (*there, *back)],
        "y": [value for _, value in (*there, *back)],
        "fill": "toself",
        "fillcolor": colour(index),
        "opacity": 0.18,
        "hoverinfo": "skip",
    }
