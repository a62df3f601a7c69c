"""The page of a study with queries, and its figures as files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import fmean

from fedstill.core.errors import InputError
from fedstill.core.numbers import capital, share
from fedstill.core.table import Cell, Head, Table
from fedstill.queries.query_figures import Balance, gain_against_forgetting
from fedstill.queries.report_section import probe_figures
from fedstill.queries.study_figures import PREFIX
from fedstill.queries.study_table import down_axes, has_queries, places, query_caption, query_table
from fedstill.report.extensions import StudyPage, study_pages
from fedstill.report.figure import Figure
from fedstill.report.page import PageSection
from fedstill.report.page_file import write_page
from fedstill.report.static import figures_beside
from fedstill.runtime.result import run_called
from fedstill.studies.grid import SEED, called
from fedstill.studies.results import Results
from fedstill.studies.results_table import values_of


def write_query_report(results: Results, path: Path, runs: Path | None = None) -> Path:
    """A study's results as one self-contained HTML file that works offline, and its figures as files.

    `runs` is the folder of its runs, if present: the probe figures are computed from it.
    """
    table = query_table(results)
    if table is None:
        raise InputError(f"nobody asks for a class in the study {results.study}")
    sections = [
        PageSection("answers", "Answers to queries", tables=[_table(results)]),
        PageSection("balance", "Learning and forgetting", _balances(results)),
        PageSection(
            "probes",
            "What noise tells",
            [] if runs is None else _probes(results, runs),
            about="Clients pick the peers that they learn from by what those peers' models say of noise.",
        ),
    ]
    return write_page(
        path,
        "page.html.jinja",
        sections,
        figures_beside(path),
        heading=f"Asking for classes: {results.study}",
        summary=[f"{results.about.rstrip('.')}.", *_summary(results)],
        caution=f"{query_caption(results)}.",
        command=results.command,
    )


def _table(results: Results) -> Table:
    """The study's table, with values to sort by."""
    made = query_table(results)
    assert made is not None
    heads = tuple(
        Head(capital(name), name.replace(" ", "_"), number >= made.labels) for number, name in enumerate(made.header)
    )
    rows, above = [], [""] * made.labels
    for row in made.rows:
        above = [word or before for word, before in zip(row[: made.labels], above, strict=True)]
        named = [Cell(word, word) for word in above]
        rows.append((*named, *(Cell(word, _value(word)) for word in row[made.labels :])))
    return Table("Answers to queries, mean ± spread over seeds", heads, tuple(rows), "answers")


def _value(word: str) -> str | float:
    try:
        return float(word.split()[0])
    except ValueError:
        return word


def _balances(results: Results) -> list[Figure]:
    """One figure for each combination of all axes except the innermost, whose values are compared in it."""
    down = down_axes(results)
    if not down:
        return []
    inner = down[-1]
    names = list(results.axes[inner])
    figures: list[Figure] = []
    for group, held in _groups(results).items():
        found = []
        for index, name in enumerate(names):
            place = {**held, inner: name}
            pairs = list(_pairs(results, place))
            if pairs:
                found.append(Balance(called({inner: name}), pairs, index))
        if found:
            title = group or f"All values of {inner.replace('_', ' ')}"
            path = len(found) > 2 and all(_number(name) for name in names)
            figures.append(gain_against_forgetting(f"balance-{len(figures)}", title, found, path))
    return figures


def _pairs(results: Results, held: Mapping[str, str]) -> Iterator[tuple[float, float]]:
    """Forgetting and gain of every seed."""
    seeds = results.axes.get(SEED, {"": None})
    for seed in seeds:
        place = {**held, SEED: seed} if seed else dict(held)
        lost, gained = (values_of(results, f"{PREFIX}{name}", place) for name in ("forgetting", "gain"))
        if lost and gained:
            yield fmean(lost), fmean(gained)


def _groups(results: Results) -> dict[str, dict[str, str]]:
    """Combinations of all axes except the innermost, as text."""
    down = down_axes(results)
    groups: dict[str, dict[str, str]] = {}
    for held in places(results):
        outer = {axis: held[axis] for axis in down[:-1]}
        groups.setdefault(called(outer), outer)
    return groups


def _summary(results: Results) -> Iterator[str]:
    """The best method in each group, and of how many; the wording does not depend on the result."""
    down = down_axes(results)
    if not down:
        return
    inner = down[-1]
    first: dict[str, int] = {}
    compared = 0
    for held in _groups(results).values():
        means = {
            name: fmean(found)
            for name in results.axes[inner]
            if (found := values_of(results, f"{PREFIX}accuracy", {**held, inner: name}))
        }
        if len(means) > 1:
            compared += 1
            best = max(means, key=lambda name: means[name])
            first[best] = first.get(best, 0) + 1
            if len(_groups(results)) == 1:
                worst = min(means, key=lambda name: means[name])
                yield (
                    f"{_named(inner, best)} is the most accurate, with {share(means[best], 1)};"
                    f" {_named(inner, worst)} the least, with {share(means[worst], 1)}."
                )
    if compared > 1:
        told = [f"{_named(inner, name)} in {number}" for name, number in sorted(first.items(), key=lambda one: -one[1])]
        yield f"The most accurate, of {compared} comparisons: {', '.join(told)}."


def _named(axis: str, name: str) -> str:
    return f"“{called({axis: name}).replace('_', ' ')}”"


def _number(text: str) -> bool:
    return text.replace(".", "", 1).isdigit()


def _probes(results: Results, folder: Path) -> list[Figure]:
    """Probe figures of the runs that are present."""
    found = (run_called(row.identity, folder) for row in results.runs.values())
    return probe_figures(run for run in found if run is not None)


study_pages.register("queries")(StudyPage(has_queries, write_query_report))
