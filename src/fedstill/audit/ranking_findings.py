"""Findings about what is compared: rankings that seeds do not support, terms that do nothing, facts that lack."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from math import sqrt
from statistics import fmean, stdev, variance

from fedstill.audit.case import Case
from fedstill.audit.evidence import Seed
from fedstill.audit.phrases import named, part
from fedstill.audit.statistics import t_interval
from fedstill.audit.teacher_verdicts import ENOUGH_SEEDS
from fedstill.audit.term_magnitudes import idle_terms, parts, students_with_terms, term_sizes
from fedstill.audit.verdicts import Finding
from fedstill.core.numbers import capital, count, points, share

BySeed = Mapping[Seed, float]


def ranking_findings(case: Case) -> Iterator[Finding]:
    book = case.book
    teachers = {
        name: {seed: score.accuracy for seed, score in book.teacher_scores(name).items()}
        for name in book.teachers
        if book.teacher_mean(name) is not None
    }
    yield from _noise("teacher", teachers)
    yield from _noise("objective", _objectives(case))
    yield from _idle_terms(case)
    yield from _unknown(case)


def _objectives(case: Case) -> dict[str, dict[Seed, float]]:
    """For each objective and seed the mean student over teachers, where all teachers have one."""
    taught = {pair.teacher for pair in case.pairs}
    seeds = dict.fromkeys(student.seed for student in case.book.evidence.students)
    found: dict[str, dict[Seed, float]] = {}
    for objective in case.book.objectives:
        by_teacher = [case.book.labelled_scores((teacher, objective)) for teacher in taught]
        whole = [seed for seed in seeds if all(seed in scores for scores in by_teacher)]
        found[objective] = {seed: fmean(scores[seed].accuracy for scores in by_teacher) for seed in whole}
    return {objective: means for objective, means in found.items() if means}


def _noise(what: str, results: Mapping[str, BySeed]) -> Iterator[Finding]:
    """Whether the first is really better than the second, and how far the rest of the ranking holds."""
    ranked = sorted(results, key=lambda name: -fmean(results[name].values()))
    if len(ranked) < 2:
        return
    if max(len(values) for values in results.values()) < 2:
        yield Finding(
            "note",
            f"one-seed-{what}s",
            f"The ranking of {what}s rests on one seed",
            "How much a repetition would change it is not known.",
            "Repeat with three seeds or more.",
        )
        return
    apart = [_told_apart(results[a], results[b]) for a, b in pairwise(ranked)]
    if apart[0]:
        return
    first, second = ranked[:2]
    gap = fmean(results[first].values()) - fmean(results[second].values())
    noise = sqrt(fmean(variance(values.values()) for values in results.values() if len(values) > 1))
    equal = sum(not told for told in apart)
    rest = f" {part(equal, len(apart), 'step')} in the ranking cannot be told from noise." if len(apart) > 1 else ""
    yield Finding(
        "warning" if what == "teacher" else "note",
        f"noise-{what}s",
        f"Which {what} is best is noise",
        f"{first} leads {second} by {points(gap)}, which the seeds do not support; results of one {what} vary by"
        f" {points(noise)} (standard deviation over seeds).{rest}",
        f"Do not name a winner; repeat with more seeds, or say that these {what}s are equal.",
    )


def _told_apart(first: BySeed, second: BySeed) -> bool:
    """Paired by seed: an interval above zero with three seeds, else a gap above both deviations."""
    common = [seed for seed in first if seed in second]
    differences = [first[seed] - second[seed] for seed in common]
    if len(common) >= ENOUGH_SEEDS:
        return t_interval(differences)[0] > 0
    gap = fmean(first.values()) - fmean(second.values())
    spreads = [stdev(values.values()) for values in (first, second) if len(values) > 1]
    return gap > max(spreads, default=gap)


def _idle_terms(case: Case) -> Iterator[Finding]:
    for objective in case.book.objectives:
        students = students_with_terms(case.book.evidence.students, objective)
        sizes = term_sizes(students)
        idle = idle_terms(sizes)
        if idle:
            largest = max(sizes, key=lambda name: sizes[name])
            told = [f"{name} is {share(parts(sizes)[name], 3)} of {largest}" for name in idle]
            yield Finding(
                "warning",
                "idle-term",
                f"A term of {objective} does nothing",
                f"{capital(named(told))}, mean over {count(len(students), 'student')}: in effect the objective is"
                f" {named([name for name in sizes if name not in idle])} alone.",
                "Raise its weight until terms are of a size, or do not credit it with the result.",
            )


def _unknown(case: Case) -> Iterator[Finding]:
    if not case.book.evidence.class_counts:
        yield Finding(
            "note",
            "no-class-counts",
            "The chance level is not known",
            "Without the test set's class counts nothing can be said of chance or of single-class answers.",
            "Give them: `--class-counts 100,50,20`, a CSV file of them, or `--classes N` where all are equal.",
        )
