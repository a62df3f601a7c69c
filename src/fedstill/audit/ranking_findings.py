"""Findings about what is compared: rankings that seeds do not support, terms that do nothing, facts that lack."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

from fedstill.audit.case import Case
from fedstill.audit.comparisons import BySeed, PairedComparison, compared, detectable
from fedstill.audit.evidence import Seed
from fedstill.audit.phrases import named, part
from fedstill.audit.term_magnitudes import idle_terms, parts, students_with_terms, term_sizes
from fedstill.audit.verdicts import Finding
from fedstill.core.numbers import capital, count, points, share


def ranking_findings(case: Case) -> Iterator[Finding]:
    book = case.book
    teachers = {
        name: {seed: score.accuracy for seed, score in book.teacher_scores(name).items()}
        for name in book.teachers
        if book.teacher_mean(name) is not None
    }
    yield from _noise("teacher", teachers, book.samples)
    yield from _noise("objective", _objectives(case), book.samples)
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


def _noise(what: str, results: Mapping[str, BySeed], samples: int) -> Iterator[Finding]:
    """Whether the first is really better than the second, and which others it cannot be told from."""
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
    made = compared(results, samples)
    rivals = [one for one in made if one.first == ranked[0]]
    if made and rivals[0].told_apart:
        return
    if not made:
        yield _no_common_seeds(what)
        return
    yield _not_told_apart(what, made, rivals)


def _not_told_apart(what: str, made: Sequence[PairedComparison], rivals: Sequence[PairedComparison]) -> Finding:
    nearest = rivals[0]
    equal = [one.second for one in rivals if not one.told_apart]
    tests = f"{count(len(made), 'comparison')} of all {what}s" if len(made) > 1 else "one comparison"
    rest = f" {capital(part(len(equal), len(rivals), 'other'))} cannot be told from it." if len(rivals) > 1 else ""
    return Finding(
        "warning" if what == "teacher" else "note",
        f"noise-{what}s",
        f"Which {what} is best is not shown",
        f"{nearest.first} leads {nearest.second} by {points(nearest.gap.middle)}, which seeds and test samples do not"
        f" support (p = {nearest.p:.2f}, paired t test, Holm's correction for {tests}).{rest}"
        f" {_missed(detectable(nearest, len(made)))} would be missed in more than one of five such experiments.",
        f"Do not name a winner, and do not call these {what}s equal: a smaller difference than that may exist. Add"
        " seeds and test samples.",
    )


def _missed(least: float) -> str:
    """Differences too small to be found; with two or three seeds, and many comparisons, that may be all."""
    return f"A difference below {points(least)}" if least < 1 else "Any difference"


def _no_common_seeds(what: str) -> Finding:
    return Finding(
        "warning" if what == "teacher" else "note",
        f"noise-{what}s",
        f"Which {what} is best is not shown",
        f"These {what}s have no two seeds in common, so that nothing can be compared seed by seed.",
        "Run all of them with the same seeds before one is called the best.",
    )


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
