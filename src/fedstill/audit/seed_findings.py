"""Findings about seeds: some that failed, that carry a ranking, or that are not there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import sqrt
from statistics import fmean

from fedstill.audit.case import Case
from fedstill.audit.evidence import Seed
from fedstill.audit.outlying_seeds import OutlyingSeed
from fedstill.audit.phrases import called, named
from fedstill.audit.teacher_verdicts import FAR
from fedstill.audit.verdicts import NOT_ASSESSABLE, Finding, PairVerdict
from fedstill.core.numbers import capital, count, listed, points, share

SAMPLED = 4.0  # standard errors of a difference on so many test samples: closer seeds need not have failed
FULL = 0.8  # of the pairs of teacher and objective: from here on the others are said to be missing


def seed_findings(case: Case) -> Iterator[Finding]:
    yield from _missing(case)
    wild = [(pair, seeds) for pair in case.pairs if (seeds := _spread(case, pair)) is not None]
    yield from _failed(case, wild)
    told = {(pair.teacher, pair.objective) for pair, _ in wild}
    yield from _outlying(case, [one for one in case.outlying if one.free or (one.teacher, one.objective) not in told])


def _failed(case: Case, wild: Sequence[tuple[PairVerdict, Sequence[float]]]) -> Iterator[Finding]:
    """A mean over seeds hides a seed that failed."""
    if wild:
        pair, values = max(wild, key=lambda item: max(item[1]) - min(item[1]))
        yield Finding(
            "warning",
            "unstable",
            "Some seeds failed",
            f"{named([called(one) for one, _ in wild])}: seeds differ by more than {points(FAR * case.delta)}, although"
            f" their labels are the same. Most with {called(pair)}: from {share(min(values), 1)} to"
            f" {share(max(values), 1)}, mean {share(fmean(values), 1)}.",
            "Show seeds, not only means, and look at the runs that fell behind.",
        )


def _spread(case: Case, pair: PairVerdict) -> Sequence[float] | None:
    """Accuracies of students that labels hold up, where seeds are far apart all the same."""
    if not case.book.weight(pair.objective):
        return None
    values = [score.accuracy for score in case.book.labelled_scores((pair.teacher, pair.objective)).values()]
    if len(values) < 2:
        return None
    middle, samples = fmean(values), case.book.samples
    drawn = SAMPLED * sqrt(2 * middle * (1 - middle) / samples) if samples else 0.0
    return values if max(values) - min(values) > max(FAR * case.delta, drawn) else None


def _outlying(case: Case, found: Sequence[OutlyingSeed]) -> Iterator[Finding]:
    if not found:
        return
    worst = max(found, key=lambda one: abs(one.value - one.middle))
    yield Finding(
        "warning",
        "unstable",
        "Single seeds are far from the others",
        f"{named([_place(one) for one in found])}. Most with {_place(worst)}: {share(worst.value)}, where the median"
        f" over seeds is {share(worst.middle)}; most others do not vary like this.{_carried(case, found)}",
        "Look at these runs before any mean over their seeds is compared; show all seeds.",
    )


def _place(one: OutlyingSeed) -> str:
    what = f" with {one.objective}{', label-free' if one.free else ''}" if one.objective else ""
    return f"{one.teacher}{what}, seed {one.seed}"


def _carried(case: Case, found: Sequence[OutlyingSeed]) -> str:
    """Whether the first of a ranking is first because of such a seed."""
    out = {(one.teacher, one.objective, one.seed) for one in found if not one.free}
    book = case.book
    rankings = {"": {name: book.teacher_scores(name) for name in book.teachers}}
    for objective in book.objectives:
        rankings[objective] = {
            teacher: book.labelled_scores((teacher, name)) for teacher, name in book.pairs if name == objective
        }
    told = []
    for objective, cells in rankings.items():
        with_all = {name: fmean(one.accuracy for one in seeds.values()) for name, seeds in cells.items() if seeds}
        kept = {
            name: [score.accuracy for seed, score in seeds.items() if (name, objective, seed) not in out]
            for name, seeds in cells.items()
        }
        without = {name: fmean(values) for name, values in kept.items() if values}
        if len(with_all) < 2 or not without:
            continue
        first, then = max(with_all, key=lambda name: with_all[name]), max(without, key=lambda name: without[name])
        if first != then:
            told.append(f"{first} is first{f' with {objective}' if objective else ''} only by it; without, {then} is")
    return f" {capital('; '.join(told[:2]))}." if told else ""


def _missing(case: Case) -> Iterator[Finding]:
    """Students without a result, and results that have fewer seeds than others, or other ones."""
    lost = [one for one in case.book.evidence.students if one.score is None and one.missing != NOT_ASSESSABLE]
    unequal, bare = _unequal(case), _uncontrolled(case)
    told = []
    if lost:
        reasons = list(dict.fromkeys(one.missing or "no reason given" for one in lost))
        places = [f"{one.teacher} with {one.objective}, seed {one.seed}" for one in lost]
        told.append(f"{count(len(lost), 'student')}: {named(places)} ({named(reasons, 2)})")
    if unequal:
        told.append(f"seeds are not the same in {count(len(unequal), 'case')}: {named(unequal)}")
    if bare:
        told.append(
            f"{count(len(bare), 'label-free control')} of objectives that have one with other teachers: {named(bare)}"
        )
    if told:
        yield Finding(
            "warning",
            "missing",
            "Some students are missing" if lost or bare else "Results do not have the same seeds",
            f"{capital('; '.join(told))}.",
            "Means are over those that are there; run the others before comparing, or compare the seeds that all have.",
        )


def _unequal(case: Case) -> list[str]:
    """Results that have fewer seeds than others, or other ones, and pairs that are not there at all."""
    book = case.book
    teachers = {name: list(seeds) for name, seeds in book.teachers.items()}
    pairs = {f"{pair[0]} with {pair[1]}": list(book.labelled.get(pair, {})) for pair in book.pairs}
    controls = {f"the control of {pair[0]} with {pair[1]}": list(seeds) for pair, seeds in book.free.items()}
    alone = {"labels-only students": list(book.evidence.alone)} if book.evidence.alone else {}
    told = [*_lacking(pairs or teachers), *_lacking(controls), *_lacking(pairs | alone, list(alone))]
    if pairs:
        told += _lacking({f"the accuracy of teacher {name}": seeds for name, seeds in teachers.items()})
        taught = dict.fromkeys(teacher for teacher, _ in book.pairs)
        told += [f"the accuracy of teacher {name} (not there)" for name in taught if teachers and name not in teachers]
    return told + _holes(case)


def _lacking(cells: Mapping[str, Sequence[Seed]], among: Sequence[str] | None = None) -> list[str]:
    every = list(dict.fromkeys(seed for seeds in cells.values() for seed in seeds))
    found = []
    for name, seeds in cells.items():
        lost = [seed for seed in every if seed not in seeds]
        if lost and seeds and (among is None or name in among):
            found.append(f"{name} (no seed {listed(lost)})")
    return found


def _holes(case: Case) -> list[str]:
    """Pairs that are missing from a grid that is otherwise almost complete."""
    pairs = set(case.book.pairs)
    teachers = list(dict.fromkeys(teacher for teacher, _ in case.book.pairs))
    grid = [(teacher, objective) for teacher in teachers for objective in case.book.objectives]
    if len(pairs) < FULL * len(grid):
        return []
    return [
        f"{teacher} with {objective} (not there)" for teacher, objective in grid if (teacher, objective) not in pairs
    ]


def _uncontrolled(case: Case) -> list[str]:
    """Pairs without a control, where other teachers of the same objective have one."""
    pairs, controlled = case.book.pairs, set(case.book.free)
    objectives = {objective for _, objective in controlled}
    lost = [pair for pair in pairs if pair[1] in objectives and pair not in controlled]
    return [f"{teacher} with {objective}" for teacher, objective in lost]
