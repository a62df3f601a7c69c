"""Label-free controls that are copies of labelled students: as they are, with seeds exchanged, or another teacher's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations, permutations
from math import exp, factorial, inf, log
from statistics import fmean, median, stdev
from typing import Literal, TypeVar

from fedstill.audit.case import Case
from fedstill.audit.evidence import Score, Seed
from fedstill.audit.phrases import named
from fedstill.audit.ties import (
    LEAST_SHIFTED,
    ScoreAgreement,
    TrainingNoise,
    agree,
    agreement,
    linear_agreement,
    noise_of_siblings,
    shifted_agreement,
)
from fedstill.audit.verdicts import Finding
from fedstill.core.numbers import count, points, share

FEWEST_ANSWERS = 10  # right, and wrong, from which equal answers are no accident
CLOSER = 0.4  # of what is usual in a table: how close to a line its copies lie
MOST_ORDERS = 600.0  # logarithm of a number that can still be computed with
_MOST_SEEDS = 4  # of which every order is tried

K = TypeVar("K", bound=Hashable)
StudentCells = dict[tuple[str, str, Seed], Score]  # by teacher, objective and seed


@dataclass(frozen=True)
class ControlGroup:
    """Labelled students beside the controls that may be copies of them, under the controls' names."""

    # own: not exchanged; row: the same, of one teacher; comparisons are counted within a kind
    kind: Literal["own", "row", "seeds", "teachers"]
    name: str  # empty: everything together
    students: StudentCells
    controls: StudentCells
    orders: float = 1.0  # of seeds that could have been tried instead


def copied_controls(case: Case) -> Iterator[Finding]:
    """Controls that are labelled students: their own, of all objectives together or of single ones, or another's."""
    noise, groups = noise_of_siblings(case.book), list(_control_groups(case))
    usual = _usual_gap(_students(case, free=False))
    comparisons = Counter(group.kind for group in groups)
    found: list[tuple[ControlGroup, ScoreAgreement]] = []
    for group in groups:
        how = _copies(group, noise, comparisons[group.kind], usual)
        if how is not None and (not found or group.kind == found[0][0].kind):
            found.append((group, how))
    if not found:
        yield from _same_answers(case)
        return
    group, how = found[0]
    which = f" of {named([one.name for one, _ in found if one.name])}" if group.name else ""
    example = _example(group, how, noise)
    yield Finding(
        "serious",
        "copied-control",
        "The label-free controls are copies of labelled students",
        f"{agreement_told(how)} of students with and without labels{which}; e.g. {example[0]} with {example[1]}, seed"
        f" {example[2]}: {share(group.students[example].accuracy)} and {share(group.controls[example].accuracy)}. Two"
        " trainings would differ.",
        "Nothing can be concluded from these controls: distil without labels again, and report what comes out.",
    )


def _same_answers(case: Case) -> Iterator[Finding]:
    """Where answers are known, one pair suffices: two trainings do not get the very same test samples right."""
    labelled, free = _students(case, free=False), _students(case, free=True)
    same = [
        key
        for key, score in labelled.items()
        if key in free
        and score.correct
        and score.correct == free[key].correct
        # Where almost all samples are right, or wrong, two students may well agree on each.
        and min(sum(score.correct), len(score.correct) - sum(score.correct)) >= FEWEST_ANSWERS
    ]
    if same:
        teacher, objective, seed = same[0]
        yield Finding(
            "serious",
            "copied-control",
            "The label-free controls are copies of labelled students",
            f"{count(len(same), 'control')} of {len(free):,}: {teacher} with {objective}, seed {seed}, is right on the"
            f" same {sum(labelled[same[0]].correct):,} of {len(labelled[same[0]].correct):,} test samples with labels"
            " and without. Two trainings would differ.",
            "Nothing can be concluded from these controls: distil without labels again, and report what comes out.",
        )


def _example(group: ControlGroup, how: ScoreAgreement, noise: TrainingNoise) -> tuple[str, str, Seed]:
    """Where a student and its control agree, once what was done to all of them is undone."""
    shared = [key for key in group.students if key in group.controls]
    moved = {key: how.factor * group.students[key].accuracy + how.shift for key in shared}
    scores = {key: replace(group.students[key], accuracy=value) for key, value in moved.items()}
    agreeing = (key for key in shared if agree(scores[key], group.controls[key], noise, how.slack))
    return next(agreeing, None) or min(shared, key=lambda key: abs(moved[key] - group.controls[key].accuracy))


def _copies(group: ControlGroup, noise: TrainingNoise, comparisons: int, usual: float) -> ScoreAgreement | None:
    own = group.kind in ("own", "row")
    how = agreement(group.students, group.controls, noise, comparisons * group.orders)
    if how is not None:
        # Somebody who exchanges results does not change them as well.
        return how if how.exact or own else None
    if not own:
        return None
    found = shifted_agreement(group.students, group.controls, noise, comparisons)
    found = found or linear_agreement(group.students, group.controls, noise, comparisons)
    return None if found is None or (found.within > CLOSER * usual) else found


def _usual_gap(labelled: StudentCells) -> float:
    """By how much the difference of two labelled students varies in this table: of objectives, else of seeds."""
    for part in (1, 2):
        by_name: dict[str, dict[tuple[str, ...], float]] = {}
        for key, score in labelled.items():
            by_name.setdefault(key[part], {})[tuple(value for at, value in enumerate(key) if at != part)] = (
                score.accuracy
            )
        gaps = [
            [one[key] - other[key] for key in one if key in other] for one, other in combinations(by_name.values(), 2)
        ]
        spreads = [stdev(values) for values in gaps if len(values) > 1]
        if spreads and max(spreads) > 0:
            return median(spreads)
    return inf


def _control_groups(case: Case) -> Iterator[ControlGroup]:
    """Labelled students, and the controls that may be copies of them: their own first, then those of others."""
    labelled, free = _students(case, free=False), _students(case, free=True)
    names = case.book.objectives
    by_objective = {name: {key: one for key, one in labelled.items() if key[1] == name} for name in names}
    if len(names) > 1:
        yield ControlGroup("own", "", labelled, free)
    for name in names:
        yield ControlGroup("own", name, by_objective[name], free)
    for name, other in permutations(names, 2):
        others = {(key[0], name, key[2]): score for key, score in free.items() if key[1] == other}
        yield ControlGroup("own", f"{name} (with labels) and {other} (without)", by_objective[name], others)
    by_teacher: dict[str, StudentCells] = {}
    for key, score in labelled.items():
        by_teacher.setdefault(key[0], {})[key] = score
    if len(by_teacher) > 1:
        for name, students in by_teacher.items():
            if len(students) >= LEAST_SHIFTED:
                yield ControlGroup("row", name, students, free)
    for name in names:
        for order in orders_of_seeds(by_objective[name])[1:]:
            yield ControlGroup("seeds", f"{name}, seeds exchanged", _exchanged(by_objective[name], order), free)
        own = {key: score for key, score in free.items() if key in by_objective[name]}
        for order in orders_by_rank(own, by_objective[name]):
            students = _exchanged(by_objective[name], order)
            yield ControlGroup("seeds", f"{name}, seeds exchanged", students, own, factorial(len(order)))
        yield _sorted_within_cells(name, by_objective[name], own)
    for name, other in permutations(by_teacher, 2):
        students = {(other, *key[1:]): score for key, score in by_teacher[name].items()}
        yield ControlGroup("teachers", f"{name} (with labels) and {other} (without)", students, free)


def _sorted_within_cells(name: str, labelled: StudentCells, free: StudentCells) -> ControlGroup:
    """Seeds in the order of their accuracies: copies whose seeds were exchanged in every cell in another way."""
    sides = []
    for cells in (labelled, free):
        by_pair: dict[tuple[str, str], list[Score]] = {}
        for (teacher, objective, _), score in cells.items():
            by_pair.setdefault((teacher, objective), []).append(score)
        ranked = {pair: sorted(scores, key=lambda one: one.accuracy) for pair, scores in by_pair.items()}
        sides.append({(*pair, str(place)): one for pair, scores in ranked.items() for place, one in enumerate(scores)})
    seeds = [sum(key[:2] == pair for key in sides[0]) for pair in dict.fromkeys(key[:2] for key in sides[0])]
    orders = exp(min(sum(log(factorial(number)) for number in seeds), MOST_ORDERS))
    return ControlGroup("seeds", f"{name}, seeds exchanged", sides[0], sides[1], orders)


def _exchanged(cells: StudentCells, order: Mapping[Seed, Seed]) -> StudentCells:
    return {(teacher, objective, order.get(seed, seed)): score for (teacher, objective, seed), score in cells.items()}


def _students(case: Case, free: bool) -> StudentCells:
    """Students that may be compared with a control of their own; one that gives labels no weight is the same."""
    book = case.book
    side = book.free_scores if free else book.labelled_scores
    return {
        (*pair, seed): score
        for pair in book.pairs
        if book.free.get(pair) and book.weight(pair[1]) != 0
        for seed, score in side(pair).items()
        if not book.equals_a_class([score])
    }


def orders_of_seeds(cells: Mapping[K, Score]) -> list[dict[Seed, Seed]]:
    """The ways in which a copy may have its seeds exchanged, after none: all orders, or of many seeds all rotations."""
    seeds = list(dict.fromkeys(map(_seed_of, cells)))
    if len(seeds) > _MOST_SEEDS:
        orders = [(*seeds[first:], *seeds[:first]) for first in range(len(seeds))]
    else:
        orders = list(permutations(seeds))
    return [{}, *(dict(zip(seeds, order, strict=True)) for order in orders[1:])]


def orders_by_rank(first: Mapping[K, Score], second: Mapping[K, Score]) -> list[dict[Seed, Seed]]:
    """Of more seeds than can be exchanged in every way: the one order in which means over each seed rank alike."""
    ranked = []
    for cells in (first, second):
        by_seed: dict[Seed, list[float]] = {}
        for key, score in cells.items():
            by_seed.setdefault(_seed_of(key), []).append(score.accuracy)
        ranked.append(sorted(by_seed, key=lambda seed: fmean(by_seed[seed])))
    ours, theirs = ranked
    if len(ours) <= _MOST_SEEDS or len(ours) != len(theirs):
        return []
    return [dict(zip(theirs, ours, strict=True))]


def _seed_of(key: Hashable) -> Seed:
    return str(key[-1] if isinstance(key, tuple) else key)


def agreement_told(how: ScoreAgreement) -> str:
    """How many accuracies agree, and how closely."""
    closely = "exactly" if how.exact else f"to within {count(how.slack, 'test sample')} and rounding"
    if how.within or how.factor != 1:
        line = f"{how.factor:.3g} times the others {how.shift * 100:+.2f}\u00a0points"
        return f"{how.of:,} accuracies lie on one line ({line}) to within {100 * how.within:.2f}\u00a0points"
    if how.shift:
        return f"{how.agreeing:,} of {how.of:,} accuracies differ by the same {points(how.shift)}"
    return f"{how.agreeing:,} of {how.of:,} accuracies agree {closely}"
