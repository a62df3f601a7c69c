"""A study's table: mean and sample standard deviation over seeds, one axis across and the others down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from statistics import fmean, stdev

from fedstill.core.earlier_records import current_figure
from fedstill.core.errors import InputError, did_you_mean
from fedstill.core.numbers import MISSING, capital, count, listed
from fedstill.core.table import Table, text_table
from fedstill.runtime.joint_training import JOINT_TRAINING_FAILED
from fedstill.studies.extensions import Metric, study_figures
from fedstill.studies.grid import SEED, called
from fedstill.studies.results import Labels, Results
from fedstill.tasks.task_choice import ACCURACY, own_measures

# By name: what it is, its unit, and what its values are multiplied by.
_METRICS: dict[str, Metric] = {
    "accuracy": ("test accuracy after the last round", "%", 100),
    "class_accuracy": ("class accuracy (mean recall) after the last round", "%", 100),
    "auc": ("macro one-against-rest AUC after the last round", "%", 100),
    "balanced_accuracy": ("balanced accuracy after the last round", "%", 100),
    "f1": ("macro F1 after the last round", "%", 100),
    "sensitivity": ("sensitivity after the last round, mean over classes; of two classes, the second", "%", 100),
    "specificity": ("specificity after the last round, mean over classes; of two classes, the second", "%", 100),
    "calibration_error": ("expected calibration error after the last round, 15 bins", "%", 100),
    "best": ("test accuracy of the best round (optimistic: the test set chose it)", "%", 100),
    "best_class_accuracy": ("class accuracy of the round with the best test accuracy", "%", 100),
    "selected": ("test accuracy of the round that validation data chose", "%", 100),
    "validation": ("validation accuracy after the last round", "%", 100),
    "personal": ("mean test accuracy of the clients' own models", "%", 100),
    "personal_std": ("spread over clients of their own models' test accuracy", "%", 100),
    "personal_own": ("accuracy of the clients' own models on their own mix of classes", "%", 100),
    "constant": ("share of the most predicted class in the last round", "%", 100),
    "non_finite": ("share of rounds whose model is not finite", "%", 100),
    "batchnorm_gain": ("gain in test accuracy if BatchNorm statistics are re-estimated", "points", 100),
    "negative_variances": ("largest share in any round of negative running variances", "%", 100),
    "bytes_up": ("traffic from the clients, all rounds together", "MiB", 1 / 2**20),
    "bytes_down": ("traffic to the clients, all rounds together", "MiB", 1 / 2**20),
    "bytes_round": (
        "traffic of a round, up and down, mean over rounds, without first contact",
        "MiB",
        1 / 2**20,
    ),
    "bytes_first_contact": ("what clients are sent at first contact only", "MiB", 1 / 2**20),
    "seconds": ("time of a run", "s", 1),
}
# Figures that only some methods have, by the beginning of their names.
_FURTHER = {"extra_models.": "%", "method_metrics.": "", "loss.": "", "teacher.": "%", "rounds_to.": ""}


def metrics() -> dict[str, Metric]:
    """Every metric that a table can show: what it is, its unit, and the factor by which it is shown."""
    return {**_METRICS, **{name: one for key in study_figures for name, one in study_figures[key].metrics.items()}}


def check_metric(metric: str) -> None:
    if metric not in metrics() and not metric.startswith(tuple(_FURTHER)):
        if (new := current_figure(metric)) != metric:
            raise InputError(f"the metric {metric!r} is called {new!r} now")
        known = [*metrics(), *(f"{beginning}NAME" for beginning in _FURTHER)]
        raise InputError(f"unknown metric {metric!r}: {did_you_mean(metric, known)}")


def make_table(results: Results, metric: str = "accuracy", long: bool = False) -> Table:
    """The study as a table of one metric; `long` puts every axis down, for where the table would be too wide."""
    check_metric(metric)
    axes = {axis: list(labels) for axis, labels in results.axes.items()}
    varied = [axis for axis, labels in axes.items() if axis != SEED and len(labels) > 1]
    down = [axis for axis in results.rows if axis in varied]
    down += [axis for axis in varied if axis not in down]
    across = results.columns if results.columns in varied else (down[-1] if len(down) > 1 else None)
    if long:
        across = None
    down = [axis for axis in down if axis != across]
    places = [dict(zip(varied, labels, strict=True)) for labels in product(*(axes[axis] for axis in varied))]
    numbers = {len(values_of(results, metric, place)) for place in places}
    bracketed = len(numbers) > 1 and max(numbers) > 1
    rows = []
    for labels in product(*(axes[axis] for axis in down)):
        held = dict(zip(down, labels, strict=True))
        places = [{**held, across: label} for label in axes[across]] if across else [held]
        rows.append((*labels, *(entry(results, metric, place, bracketed) for place in places)))
    shown = axes[across] if across else [_named(results, metric)]
    header = (*(axis.replace("_", " ") for axis in down), *shown)
    caption, right = _caption(results, metric, axes, numbers), range(len(down), len(header))
    return text_table(caption, header, thinned(rows, len(down)), right, notes(results))


def notes(results: Results) -> str:
    """What a reader must know of some of the runs; empty without any."""
    return " ".join(filter(None, [stale_note(results), joint_training_note(results), few_seeds_note(results)]))


def few_seeds_note(results: Results) -> str:
    """One sentence where cells are compared with fewer than three seeds; empty otherwise."""
    seeds, cells = len(results.axes.get(SEED, ())) or 1, len(results.runs)
    if seeds > 2 or cells <= seeds:
        return ""
    return f"{capital(count(seeds, 'seed'))} only: differences between cells may be due to chance."


def stale_note(results: Results) -> str:
    """One sentence about runs that would give other numbers today; empty without any."""
    told = stale_runs({"runs": results})
    return f"Stale: {told}" if told else ""


def stale_runs(stages: Mapping[str, Results]) -> str:
    """How many of what, by the name of a stage, and why; empty without any."""
    found = {name: (results.stale(), len(results.runs)) for name, results in stages.items()}
    counts = [f"{len(stale)} of {total} {name}" for name, (stale, total) in found.items() if stale]
    why = dict.fromkeys(reason for stale, _ in found.values() for reason in stale.values())
    return f"{listed(counts)} ({'; '.join(why)})." if counts else ""


def joint_training_note(results: Results) -> str:
    """One sentence about students that were trained separately because joint training failed; empty without any."""
    if not results.joint_errors:
        return ""
    students = capital(count(len(results.joint_errors), "student"))
    were = "was" if len(results.joint_errors) == 1 else "were"
    errors = dict.fromkeys(error.removeprefix(JOINT_TRAINING_FAILED) for error in results.joint_errors.values())
    return f"{students} {were} trained separately because joint training failed: {'; '.join(errors)}."


def _named(results: Results, metric: str) -> str:
    """Above a column of one metric: detectors have no accuracy, and what stands for it has a name of its own."""
    if metric in own_measures():
        return own_measures()[metric]
    return metric.replace("_", " ").replace(ACCURACY, _measure(results))


def _measure(results: Results) -> str:
    shown = {name for row in results.runs.values() for name, value in row.figures.items() if value is not None}
    return next((title for metric, title in own_measures().items() if metric in shown), ACCURACY)


def values_of(results: Results, metric: str, held: dict[str, str]) -> list[float]:
    """That figure of all runs with these labels."""
    rows = [row for cell, row in results.runs.items() if _matches(results, cell, held)]
    return [value for row in rows if (value := row.figures.get(metric)) is not None]


def _matches(results: Results, cell: Labels, held: dict[str, str]) -> bool:
    return all(held.get(axis, label) == label for axis, label in zip(results.axes, cell, strict=True))


def entry(results: Results, metric: str, held: dict[str, str], bracketed: bool) -> str:
    """What a table says there; in brackets, of how many runs."""
    values = values_of(results, metric, held)
    if not values:
        if any(_matches(results, cell, held) for cell in results.failures):
            return "failed"
        return "n/a" if any(_matches(results, cell, held) for cell in results.refused) else MISSING
    text = spread([value * _scale(metric)[1] for value in values])
    return f"{text} ({len(values)})" if bracketed else text


def spread(values: Sequence[float]) -> str:
    """Mean and sample standard deviation; a single value has no spread.

    >>> spread([90.0, 91.0, 92.0]), spread([50.0])
    ('91.00 ± 1.00', '50.00')
    """
    mean = f"{fmean(values):.2f}"
    return f"{mean} ± {stdev(values):.2f}" if len(values) > 1 else mean


def _scale(metric: str) -> tuple[str, float]:
    if (known := metrics().get(metric)) is not None:
        return known[1], known[2]
    unit = next(unit for beginning, unit in _FURTHER.items() if metric.startswith(beginning))
    return unit, 100.0 if unit == "%" else 1.0


def _caption(results: Results, metric: str, axes: dict[str, list[str]], numbers: set[int]) -> str:
    what, unit = metrics()[metric][0] if metric in metrics() else metric, _scale(metric)[0]
    what = what.replace(ACCURACY, _measure(results))
    what = f"{what}, in {unit}" if unit else what
    most = max(numbers, default=0)
    if most > 1:
        what += f": mean ± sample standard deviation over {count(most, 'seed')}"
    if len(numbers) > 1 and most > 1:
        what += "; in brackets, how many runs there are"
    if "which" in results.source:
        what += f"; every teacher is its run's {results.source['which']} model"
    fixed = called({axis: labels[0] for axis, labels in axes.items() if len(labels) == 1})
    return f"{results.study}: {what}" + (f" ({fixed})" if fixed else "")


def thinned(rows: list[tuple[str, ...]], labels: int) -> list[tuple[str, ...]]:
    """A label that is the same as in the row above is not repeated, except for the innermost."""
    thinned = []
    for number, row in enumerate(rows):
        same = 0
        while number and same < labels - 1 and rows[number - 1][same] == row[same]:
            same += 1
        thinned.append(("",) * same + row[same:])
    return thinned
