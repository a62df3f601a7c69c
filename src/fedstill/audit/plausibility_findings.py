"""Findings about figures that cannot be: no whole number of test samples, and no result that was measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import floor

from fedstill.audit.case import Case
from fedstill.audit.evidence import Score
from fedstill.audit.phrases import NAMED, named, part
from fedstill.audit.sample_counts import is_possible
from fedstill.audit.verdicts import Finding
from fedstill.core.numbers import capital

MEANS = ("mean", "avg", "average", "all", "overall", "mean over seeds")  # seeds that are no single run


@dataclass(frozen=True)
class PrintedScore:
    """An accuracy with the place where it stands."""

    place: str
    score: Score


def plausibility_findings(case: Case) -> Iterator[Finding]:
    yield from _impossible(case)
    yield from _edited(case)
    yield from _stale(case)


def _impossible(case: Case) -> Iterator[Finding]:
    """The GRIM test: an accuracy on n test samples is k/n, as far as the printed digits tell."""
    samples = case.book.samples
    every = list(_printed(case)) if samples else []
    wrong = [one for one in every if not is_possible(one.score, samples)]
    if not wrong:
        return
    told = [f"{one.place}: {_as_printed(one.score)}, next {_neighbours(one.score, samples)}" for one in wrong]
    evidence = (
        f"{capital(part(len(wrong), len(every), 'figure'))} cannot be an accuracy on {samples:,} test samples:"
        f" {'; '.join(told[:NAMED])}."
    )
    if 2 * len(wrong) > len(every):
        yield Finding(
            "warning",
            "impossible-accuracy",
            "The accuracies do not belong to a test set of this size",
            evidence,
            "Check the number of test samples. Means over seeds or batches, class accuracies and results on several"
            " test sets are no shares of one test set: say so beside the table.",
        )
        return
    yield Finding(
        "serious",
        "impossible-accuracy",
        "Some accuracies are not possible on this test set",
        evidence,
        "Compare these with the runs: they were mistyped, changed, or measured on other data.",
    )


def _printed(case: Case) -> Iterator[PrintedScore]:
    """Accuracies of single runs that were read from a table."""
    evidence = case.book.evidence
    found = [(f"teacher {one.name}, seed {one.seed}", one.seed, one.score) for one in evidence.teachers]
    found += [
        (
            f"{one.teacher} with {one.objective}, seed {one.seed}{', label-free' if one.free else ''}",
            one.seed,
            one.score,
        )
        for one in evidence.students
    ]
    found += [(f"labels-only student, seed {seed}", seed, score) for seed, score in evidence.alone.items()]
    own = {(one.model, one.seed): one.alone for one in evidence.students if one.alone is not None}
    if not evidence.alone:
        found += [(f"labels-only {model}, seed {seed}", seed, score) for (model, seed), score in own.items()]
    for place, seed, score in found:
        if score is not None and score.unit and seed.lower() not in MEANS:
            yield PrintedScore(place, score)


def _as_printed(score: Score) -> str:
    digits = next(number for number in range(13) if 10.0 ** -(number + 2) <= score.unit * 1.01 or number == 12)
    return f"{100 * score.accuracy:.{digits}f} %"


def _neighbours(score: Score, samples: int) -> str:
    below = floor(score.accuracy * samples)
    return f"{100 * below / samples:.2f} % ({below} right) and {100 * (below + 1) / samples:.2f} %"


def _edited(case: Case) -> Iterator[Finding]:
    edited = case.book.evidence.edited
    if edited:
        yield Finding(
            "serious",
            "edited",
            "Figures are not those of the runs",
            f"{named(list(edited))}.",
            "Run `fedstill verify` on these results, then the study again: runs are reused, and figures read anew.",
        )


def _stale(case: Case) -> Iterator[Finding]:
    note = case.book.evidence.settings.get("stale")
    if note:
        yield Finding(
            "warning",
            "stale",
            "Some results are stale",
            f"{note} Today's code would give other numbers.",
            "Run the study again before results of several versions are compared.",
        )
