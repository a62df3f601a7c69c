"""Which classes a run gets right, and what it takes them for: from the predictions that runs keep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fedstill.core.metric_records import ModelMetrics
from fedstill.core.numbers import share
from fedstill.core.table import Column, Table, make_table, percent, text, whole
from fedstill.report.figure import Figure, axis, label
from fedstill.report.page import PageSection
from fedstill.runtime.result import Run

_MOST_CLASSES = 60  # with more there is no room for a matrix
_MOST_RUNS = 6  # whose matrices are drawn
_NUMBERS = 16  # up to so many classes there is room for figures in the cells


@dataclass(frozen=True)
class ClassFigures:
    """One class in one run."""

    run: str
    name: str
    samples: int
    right: int
    predicted: int
    taken_for: str  # the class that its samples are most often mistaken for; empty: none
    auc: float | None = None  # against the rest
    f1: float | None = None
    specificity: float | None = None

    @property
    def recall(self) -> float | None:
        return self.right / self.samples if self.samples else None

    @property
    def precision(self) -> float | None:
        return self.right / self.predicted if self.predicted else None


def classes_section(runs: Mapping[str, Run]) -> PageSection:
    """Matrices and a table of the last models; a sentence where runs keep no predictions of single classes."""
    pairs = {title: found for title, run in runs.items() if (found := _pairs(run)) is not None}
    shown = {title: pairs[title] for title in list(pairs)[:_MOST_RUNS]}
    figures = [_matrix(number, title, *one) for number, (title, one) in enumerate(shown.items())]
    without = [title for title in runs if title not in pairs]
    about = "Of the last models, on the test samples." if pairs else ""
    if without and pairs:
        about += f" {len(without)} of {len(runs)} runs keep no predictions of one class for each sample."
    kept = {title: run.metrics.get("last") for title, run in runs.items()}
    tables = [_table(pairs, kept)] if pairs else []
    return PageSection("classes", "Classes", [one for one in figures if one is not None], tables, about=about)


def _pairs(run: Run) -> tuple[Sequence[str], Counter[tuple[int, int]]] | None:
    """The names of the classes, and how often each was predicted for each."""
    truth, said = run.test_labels, run.predictions("last")
    if not truth or not said:
        return None
    return tuple(run.config["classes"]), Counter(zip(truth, said, strict=True))


def _matrix(number: int, title: str, names: Sequence[str], pairs: Counter[tuple[int, int]]) -> Figure | None:
    """Rows are classes, and add up to 100 %."""
    if len(names) > _MOST_CLASSES:
        return None
    totals = Counter[int]()
    for (truth, _), times in pairs.items():
        totals[truth] += times
    places = range(len(names))
    shares = [[pairs[row, column] / totals[row] if totals[row] else None for column in places] for row in places]
    worst = min((one for one in places if totals[one]), key=lambda one: shares[one][one] or 0.0)
    few = len(names) <= _NUMBERS
    trace = {
        "type": "heatmap",
        "x": [label(name) for name in names],
        "y": [label(name) for name in names],
        "z": shares,
        "zmin": 0,
        "zmax": 1,
        "colorscale": [[0, "var(--card)"], [1, "var(--series-1)"]],
        "showscale": False,
        "xgap": 1,
        "ygap": 1,
        "hovertemplate": "%{y}, predicted as %{x}: %{z:.1%}<extra></extra>",
        "text": [["" if not value else f"{100 * value:.0f}" for value in row] for row in shares],
        "texttemplate": "%{text}" if few else "",
    }
    room = 26 if few else 13
    return Figure(
        f"confusion-{number}",
        f"{title}: what classes are taken for",
        f"Confusion matrix of {title}: the class with the lowest recall is {names[worst]}"
        f" ({share(shares[worst][worst], 1)}).",
        "Rows are true classes and add up to 100 %; columns are predicted classes. Right answers are on the diagonal.",
        [trace],
        {
            "height": 130 + room * len(names),
            "xaxis": axis("predicted class", type="category", side="bottom"),
            "yaxis": axis("true class", type="category", autorange="reversed"),
        },
    )


def _table(
    pairs: Mapping[str, tuple[Sequence[str], Counter[tuple[int, int]]]], kept: Mapping[str, ModelMetrics | None]
) -> Table:
    rows = [
        _with_metrics(one, kept[title], place)
        for title, (names, counted) in pairs.items()
        for place, one in enumerate(_figures(title, names, counted))
    ]
    columns: tuple[Column[ClassFigures], ...] = (
        Column("Class", "class", lambda row: text(row.name), right=False),
        Column("Run", "run", lambda row: text(row.run), right=False),
        Column("Test samples", "samples", lambda row: whole(row.samples)),
        Column("Recall", "recall", lambda row: percent(row.recall)),
        Column("Precision", "precision", lambda row: percent(row.precision)),
        Column("Specificity", "specificity", lambda row: percent(row.specificity), always=False),
        Column("F1", "f1", lambda row: percent(row.f1), always=False),
        Column("AUC", "auc", lambda row: percent(row.auc), always=False),
        Column("Most often taken for", "taken_for", lambda row: text(row.taken_for), right=False),
    )
    return make_table("classes", "Every class in every run", columns, rows)


def _with_metrics(row: ClassFigures, kept: ModelMetrics | None, place: int) -> ClassFigures:
    """With what the run kept of this class."""
    if kept is None:
        return row
    auc, f1, specificity = (kept.by_class.get(name) for name in ("auc", "f1", "specificity"))
    return replace(
        row,
        auc=None if auc is None else auc[place],
        f1=None if f1 is None else f1[place],
        specificity=None if specificity is None else specificity[place],
    )


def _figures(title: str, names: Sequence[str], pairs: Counter[tuple[int, int]]) -> list[ClassFigures]:
    found = []
    for place, name in enumerate(names):
        wrong = {said: times for (truth, said), times in pairs.items() if truth == place != said and times}
        most = max(wrong, key=lambda said: wrong[said], default=None)
        taken = "" if most is None else "no finite output" if most < 0 else f"{names[most]} ({wrong[most]:,})"
        samples = sum(times for (truth, _), times in pairs.items() if truth == place)
        predicted = sum(times for (_, said), times in pairs.items() if said == place)
        found.append(ClassFigures(title, name, samples, pairs[place, place], predicted, taken))
    return found
