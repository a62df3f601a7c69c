"""Figures of how runs went on: accuracy and loss by round, and accuracy by what had been sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedstill.core.numbers import share, size, unit_of
from fedstill.report.facts import RunCourse, measured, number
from fedstill.report.figure import ALARM, DASHES, Figure, Key, axis, colour, curve, dash, lone, loss_axis, whole_axis
from fedstill.tasks.task_choice import ACCURACY

_WIDE = 20.0  # traffic that differs by more than this factor is drawn on a logarithmic axis
_FROM_ZERO = {"rangemode": "tozero"}


class _Lines:
    """Curves and their key, as they are added."""

    def __init__(self) -> None:
        self.data: list[dict[str, Any]] = []
        self.keys: list[Key] = []

    def add(self, index: int, label: str, points: Sequence[tuple[float, float]], hover: str) -> None:
        """One run's curve; by its index a run keeps its colour in every figure."""
        self.keys.append(Key(label, colour(index), (len(self.data),), DASHES[dash(index)]))
        hovering = {"hovertemplate": f"{hover}<extra></extra>", "hoverlabel": {"bordercolor": colour(index)}}
        self.data.append(curve(index, points, name=label, **hovering))

    def cross(self, broken: Sequence[tuple[RunCourse, int]]) -> None:
        """Mark rounds after which a model was not finite."""
        self.keys.append(Key("model not finite", ALARM, (len(self.data),), shape="cross"))
        self.data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": "model not finite",
                "x": [round for _, round in broken],
                # A model without a score still has to be seen: on the floor.
                "y": [dict(run.curve).get(round, 0.0) for run, round in broken],
                "marker": {"color": ALARM, "symbol": "x", "size": 10},
                "hovertemplate": "round %{x}: the model is not finite<extra></extra>",
            }
        )


def curves(runs: Sequence[RunCourse]) -> list[Figure]:
    """Those that have something to show: what was measured once has no course."""
    by_round = [_accuracy(runs), _loss(runs)] if any(len(run.journal) > 1 for run in runs) else []
    return [figure for figure in (*by_round, _traffic(runs)) if sum(len(trace["x"]) for trace in figure.data) > 1]


def accuracy_and_loss(runs: Sequence[RunCourse]) -> Figure:
    """Both in one figure, side by side."""
    left, right = _accuracy(runs), _loss(runs)
    keys = {key.label: replace(key, traces=()) for key in (*left.keys, *right.keys)}
    title = f"Test {measured(runs)} and training loss by round"
    layout = {**left.layout, "xaxis2": right.layout["xaxis"], "yaxis2": right.layout["yaxis"]}
    beside = [{**trace, "xaxis": "x2", "yaxis": "y2"} for trace in right.data]
    sentence = f"{left.sentence} {right.sentence}"
    return Figure("rounds", title, sentence, left.caption, [*left.data, *beside], layout, list(keys.values()))


def _accuracy(runs: Sequence[RunCourse]) -> Figure:
    lines, told = _Lines(), []
    for index, run in enumerate(runs):
        if run.curve:
            lines.add(index, run.title, run.curve, "round %{x}: %{y:.2%}")
            told.append(_course(run))
    broken = [(run, round) for run in runs for round in run.broken]
    if broken:
        lines.cross(broken)
    measure = measured(runs)
    return Figure(
        "accuracy",
        f"Test {measure} by round",
        f"Test {measure} after each round. {' '.join(told)}",
        f"{_meaning(runs)} after each round; of clients' own models, their mean.",
        lines.data,
        {"xaxis": _rounds(runs), "yaxis": _accuracies(measure, lines)},
        lines.keys,
    )


def _loss(runs: Sequence[RunCourse]) -> Figure:
    lines, told = _Lines(), []
    for index, run in enumerate(runs):
        for term, (label, points) in enumerate(_terms(run, alone=len(runs) == 1).items()):
            # The many terms of one detector tell each other apart, and else runs do.
            lines.add(term if run.detects and len(runs) == 1 else index, label, points, "round %{x}: %{y:.4f}")
            told.append(f"“{label}” goes from {points[0][1]:.3f} to {points[-1][1]:.3f}.")
    return Figure(
        "loss",
        "Training loss by round",
        f"Mean training loss of each round. {' '.join(told)}",
        "What the clients minimised, on their own data, averaged over a round and weighted by samples. On unequal"
        " shards it is low because few classes are easy to tell apart, not because the shared model is good.",
        lines.data,
        {"xaxis": _rounds(runs), "yaxis": loss_axis([y for trace in lines.data for y in trace["y"]])},
        lines.keys,
    )


def _terms(run: RunCourse, alone: bool) -> Mapping[str, Sequence[tuple[float, float]]]:
    """The losses by round that are drawn of a run, by label; of a detector among others the sum of all its terms."""
    terms = list(dict.fromkeys(term for record in run.journal for term in record.loss))
    if run.detects and not alone:
        sums = [(record.round, number(sum(record.loss.values()))) for record in run.journal if record.loss]
        found = {run.title: sums}
    else:
        found = {
            run.title if len(terms) == 1 else f"{run.title}: {term}": [
                (record.round, number(record.loss.get(term))) for record in run.journal
            ]
            for term in terms
        }
    drawn = {label: [(at, value) for at, value in curve if value is not None] for label, curve in found.items()}
    # A term that is always nothing (the headings of boxes that have none) is not worth a line.
    return {label: curve for label, curve in drawn.items() if curve and (not run.detects or any(y for _, y in curve))}


def _traffic(runs: Sequence[RunCourse]) -> Figure:
    chosen = [(index, run) for index, run in enumerate(runs) if not run.pooled and run.traffic_curve]
    amounts = [amount for _, run in chosen for amount, _ in run.traffic_curve if amount > 0]
    unit, scale = unit_of(max(amounts, default=0))
    wide = bool(amounts) and max(amounts) > _WIDE * min(amounts)
    lines, told = _Lines(), []
    for index, run in chosen:
        points = [(amount / scale, accuracy) for amount, accuracy in run.traffic_curve if amount > 0 or not wide]
        lines.add(index, run.title, points, f"%{{x:.3~f}} {unit}: %{{y:.2%}}")
        amount, accuracy = run.traffic_curve[-1]
        told.append(f"{run.quoted} reaches {share(accuracy, 1)} with {size(amount)}.")
    measure = measured(runs)
    return Figure(
        "traffic",
        f"Test {measure} by measured traffic",
        f"Test {measure} against all bytes sent so far, up and down. {' '.join(told)}",
        "Bytes of the messages as they were encoded, both ways, over all clients. Pooled training is left out: it"
        " sends no models.",
        lines.data,
        {
            "xaxis": axis(
                f"sent so far, up and down ({unit})", **({"type": "log", "dtick": "D2"} if wide else _FROM_ZERO)
            ),
            "yaxis": _accuracies(measure, lines),
        },
        lines.keys,
    )


def _meaning(runs: Sequence[RunCourse]) -> str:
    if runs[0].shown != ACCURACY:
        return f"{measured(runs)} of the model on the test samples"
    told = {
        False: "Share of the test samples that the model gets right",
        True: "Average precision in the test scenes, a box being right above an IoU of 0.25, as mean over classes",
    }
    return "; or: ".join(told[detects] for detects in sorted({run.detects for run in runs}))


def _course(run: RunCourse) -> str:
    (first, start), (last, end) = run.curve[0], run.curve[-1]
    return f"{run.quoted} goes from {share(start, 1)} in round {first} to {share(end, 1)} in round {last}."


def _accuracies(measure: str, lines: _Lines) -> dict[str, Any]:
    drawn = (score for trace in lines.data for score in trace["y"])
    return axis(f"test {measure}", tickformat=".0%", **lone(drawn))


def _rounds(runs: Sequence[RunCourse]) -> dict[str, Any]:
    return whole_axis("round", max(len(run.journal) for run in runs))
