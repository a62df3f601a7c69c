"""Metrics beside accuracy on a page of runs: a table with intervals, and how far confidence can be trusted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedstill.core.metric_records import ModelMetrics
from fedstill.core.numbers import MISSING, share
from fedstill.core.table import Cell, Column, Table, make_table, percent, text
from fedstill.report.figure import DASHES, QUIET, Figure, Key, axis, colour, curve, dash, label
from fedstill.report.page import PageSection
from fedstill.runtime.result import Run
from fedstill.runtime.round_ranking import TITLES
from fedstill.tasks.class_metrics import NAMES

_MOST_RUNS = 6  # in one figure


@dataclass(frozen=True)
class _Line:
    title: str
    kept: ModelMetrics

    def cell(self, name: str) -> Cell:
        value, limits = self.kept.overall.get(name), self.kept.intervals.get(name)
        if value is None:
            return Cell(MISSING, None)
        if limits is None:
            return percent(value)
        return Cell(f"{share(value)} ({share(limits[0], 1)} to {share(limits[1], 1)})", value)


def metrics_section(runs: Mapping[str, Run]) -> PageSection:
    """Of the last models of classifiers; empty where runs kept none."""
    kept = {title: found for title, run in runs.items() if (found := run.metrics.get("last")) is not None}
    if not kept:
        return PageSection("metrics", "Further metrics")
    about = (
        "Of the last models, in brackets with 95 % intervals over test samples: percentiles over samples drawn again,"
        " of any class, which say nothing about other trainings. AUC, F1, sensitivity and specificity are means over"
        " classes against the rest; with two classes, sensitivity and specificity are those of the second."
    )
    return PageSection("metrics", "Further metrics", _reliability(kept), [_table(kept), *_sites(runs)], about=about)


def _table(kept: Mapping[str, ModelMetrics]) -> Table:
    def of(name: str) -> Column[_Line]:
        return Column(_heading(name), name, lambda row: row.cell(name), always=False)

    columns = [Column[_Line]("Run", "run", lambda row: text(row.title), right=False), *map(of, NAMES)]
    return make_table("metrics", "Metrics beside accuracy", columns, [_Line(*one) for one in kept.items()])


def _sites(runs: Mapping[str, Run]) -> list[Table]:
    """What each site measured on its own test data after the last round."""
    rows: list[dict[str, Any]] = []
    for title, run in runs.items():
        evaluation = next((one.evaluation for one in reversed(run.journal) if one.evaluation is not None), None)
        further = None if evaluation is None else evaluation.further
        rows += [{"run": title, "site": str(site), **one} for site, one in ((further and further.sites) or {}).items()]
    if not rows:
        return []

    def of(name: str) -> Column[dict[str, Any]]:
        return Column(_heading(name), name, lambda row: percent(row.get(name)), always=False)

    columns: list[Column[dict[str, Any]]] = [
        Column("Run", "run", lambda row: text(row["run"]), right=False),
        Column("Site", "site", lambda row: text(row["site"]), right=False),
        *map(of, ("accuracy", *NAMES)),
    ]
    return [make_table("sites", "On each site's own test data", columns, rows)]


def _reliability(kept: Mapping[str, ModelMetrics]) -> list[Figure]:
    """Accuracy by confidence; a calibrated model lies on the diagonal."""
    diagonal = {"type": "scatter", "mode": "lines", "x": [0, 1], "y": [0, 1], "hoverinfo": "skip", "name": "calibrated"}
    data: list[dict[str, Any]] = [{**diagonal, "line": {"color": QUIET, "dash": "dot", "width": 1.5}}]
    keys = [Key("calibrated", QUIET, dash="2 3")]
    told = []
    for index, (title, one) in enumerate(list(kept.items())[:_MOST_RUNS]):
        points = [(confidence / samples, right / samples) for samples, confidence, right in one.calibration if samples]
        if not points:
            continue
        keys.append(Key(title, colour(index), (len(data),), DASHES[dash(index)]))
        hover = f"{label(title)}: confidence %{{x:.1%}}, right %{{y:.1%}}<extra></extra>"
        data.append(curve(index, points, name=label(title), hovertemplate=hover))
        told.append(f"“{title}”: calibration error {share(one.overall.get('calibration_error'), 1)}.")
    if len(data) == 1:
        return []
    return [
        Figure(
            "reliability",
            "Is confidence right?",
            f"Share of right answers by the model's confidence. {' '.join(told)}",
            "Test samples in 15 bins by the probability of the predicted class: mean confidence and share of right"
            " answers. Below the dotted line a model is too confident; bins with few samples scatter.",
            data,
            {
                "xaxis": axis("confidence", tickformat=".0%", range=[0, 1.02]),
                "yaxis": axis("right answers", tickformat=".0%", range=[-0.02, 1.05]),
            },
            keys,
        )
    ]


def _heading(name: str) -> str:
    title = TITLES[name]
    return title[:1].upper() + title[1:]
