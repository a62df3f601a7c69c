"""Single seeds far from the other seeds of their cell, held against the spread of all cells of their kind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, median, quantiles

from fedstill.audit.evidence import Score, Seed
from fedstill.audit.evidence_lookup import Book, Pair

FAR_OUT = 6.0  # times the upper quartile of the other cells' standard deviations, from the median of its cell
CARRYING = 0.75  # of these distances suffices where the first of a ranking is first by this seed alone
FAR_OUT_OF_FEW = 8.0  # times the largest of them, where few other cells say how much seeds vary
FEW_CELLS = 4
MANY_CELLS = 12  # from which the median says how much seeds vary, if all vary alike
STEADY = 1.9  # upper quartile over median of the spreads of cells that vary alike, at most
LESS_STABLE = 2.0  # times the spread of other objectives
FAR_OF_TWO = 1.5  # times the threshold from their middle: two seeds that are closer need not have failed
ALONE = 3.0  # times the threshold from all other seeds, where there are no other cells
# The expected range of so many draws from a normal distribution, in standard deviations.
RANGES = {2: 1.13, 3: 1.69, 4: 2.06, 5: 2.33, 6: 2.53, 7: 2.70, 8: 2.85, 9: 2.97, 10: 3.08}

LABELS_ONLY = "labels-only students"

Values = Mapping[Seed, float]


@dataclass(frozen=True)
class OutlyingSeed:
    """One accuracy that is not like the other seeds of its teacher, or of its teacher and objective."""

    teacher: str
    objective: str  # empty: the teacher itself
    free: bool
    seed: Seed
    value: float
    middle: float  # median of its cell


def outlying_seeds(book: Book, delta: float) -> list[OutlyingSeed]:
    """Teachers first; a student that only follows the outlying seed of its teacher is not counted."""
    taught = {name: _values(book, name) for name in book.teachers}
    found = [
        OutlyingSeed(name, "", False, seed, value, middle)
        for name, seed, value, middle, _ in _outlying(book, taught, delta)
    ]
    for free in (False, True):
        everyone = {
            pair: {seed: score.accuracy for seed, score in scores.items()}
            for pair in book.pairs
            if (scores := _students(book, pair, free))
        }
        for objective in book.objectives:
            cells = {teacher: values for (teacher, name), values in everyone.items() if name == objective}
            beside = [values for (_, name), values in everyone.items() if name != objective]
            found += [
                OutlyingSeed(teacher, objective, free, seed, value, middle)
                for teacher, seed, value, middle, reach in _outlying(book, cells, delta, beside)
                if not _follows(taught.get(teacher, {}), seed, value - middle, reach)
            ]
    return found + _outlying_alone(book, delta)


def _outlying_alone(book: Book, delta: float) -> list[OutlyingSeed]:
    """Labels-only students, of which every gain is counted, beside all students of labels and a teacher."""
    cells: dict[str, Values] = {
        " with ".join(pair): {seed: score.accuracy for seed, score in book.labelled_scores(pair).items()}
        for pair in book.pairs
    }
    alone = {LABELS_ONLY: book.evidence.alone} if book.evidence.alone else _alone_by_model(book)
    cells |= {name: {seed: score.accuracy for seed, score in scores.items()} for name, scores in alone.items()}
    return [
        OutlyingSeed(name, "", False, seed, value, middle)
        for name, seed, value, middle, _ in _outlying(book, cells, delta)
        if name in alone
    ]


def _alone_by_model(book: Book) -> dict[str, Mapping[Seed, Score]]:
    found: dict[str, dict[Seed, Score]] = {}
    for one in book.evidence.students:
        if one.alone is not None:
            found.setdefault(f"{LABELS_ONLY} ({one.model})", {})[one.seed] = one.alone
    return dict(found)


def _values(book: Book, teacher: str) -> Values:
    return {seed: score.accuracy for seed, score in book.teacher_scores(teacher).items()}


def _students(book: Book, pair: Pair, free: bool) -> dict[Seed, Score]:
    if free:
        return {} if book.own_control(pair) else book.free_scores(pair)
    return book.labelled_scores(pair)


def _outlying(
    book: Book, cells: Mapping[str, Values], delta: float, beside: Sequence[Values] = ()
) -> Iterator[tuple[str, Seed, float, float, float]]:
    """Cell, seed, accuracy, the median of the cell, and how far from it a seed may be.

    `beside` are cells of other objectives, which say how much seeds vary where there are few of this one.
    """
    ranges = {name: spread_of(list(values.values())) for name, values in cells.items() if len(values) > 1}
    further = [spread_of(list(values.values())) for values in beside if len(values) > 1]
    for name, values in cells.items():
        others = [spread for other, spread in ranges.items() if other != name]
        enough = len(others) + len(further) >= FEW_CELLS
        if len(values) < (2 if enough else 3):
            continue
        middle = median(values.values())
        if len(others) < 2 and not enough:
            yield from (
                (name, seed, value, middle, ALONE * delta)
                for seed, value in values.items()
                if _stands_alone(values, seed, delta)
            )
            continue
        noise = sqrt(middle * (1 - middle) / book.samples) if book.samples else 0.0
        far = _far(others, further, noise)
        if len(values) == 2:  # either may be the one that failed
            far = max(far, FAR_OF_TWO * delta)
        for seed, value in values.items():
            reach = max(CARRYING * far if _carries(cells, name, seed) else far, delta)
            if abs(value - middle) > reach and (len(values) > 2 or _is_farther(cells, name, seed)):
                yield name, seed, value, middle, reach


def _far(others: Sequence[float], further: Sequence[float], noise: float) -> float:
    """The usual distance of seeds, by the other cells, times what is far beyond it."""
    every = [*others, *further]
    if len(every) >= MANY_CELLS and quantiles(every, n=4)[2] <= STEADY * median(every):
        usual = max(median(every), noise)
        if not others or median(others) <= LESS_STABLE * usual:
            return FAR_OUT * usual
    if len(others) >= FEW_CELLS:
        return FAR_OUT * max(quantiles(others, n=4)[2], noise)
    if len(others) + len(further) < FEW_CELLS:
        return FAR_OUT_OF_FEW * max(*others, noise)
    usual = max(quantiles([*others, *further], n=4)[2], noise)
    if not others:
        return FAR_OUT * usual
    own = median(others)  # an objective may be less stable than the others
    return min(FAR_OUT_OF_FEW * max(*others, noise), FAR_OUT * (own if own > LESS_STABLE * usual else usual))


def _is_farther(cells: Mapping[str, Values], name: str, seed: Seed) -> bool:
    """Of two seeds, whether this one is farther from the usual level of the other cells."""
    levels = [fmean(values.values()) for other, values in cells.items() if values and other != name]
    usual = median(levels) if levels else max(cells[name].values())
    return all(abs(cells[name][seed] - usual) >= abs(value - usual) for value in cells[name].values())


def _carries(cells: Mapping[str, Values], name: str, seed: Seed) -> bool:
    """Whether this cell leads by this seed alone: not by its other seeds."""
    best = max((fmean(values.values()) for other, values in cells.items() if values and other != name), default=1.0)
    rest = [value for other, value in cells[name].items() if other != seed]
    return fmean(cells[name].values()) > best >= fmean(rest)


def _stands_alone(values: Values, seed: Seed, delta: float) -> bool:
    """Without other cells to compare with: far from all other seeds, which agree among each other."""
    others = [value for other, value in values.items() if other != seed]
    away = min(abs(values[seed] - value) for value in others)
    return max(others) - min(others) <= delta and away > ALONE * delta


def spread_of(values: Sequence[float]) -> float:
    """The standard deviation that the range of these values speaks for."""
    return (max(values) - min(values)) / RANGES.get(len(values), RANGES[10])


def _follows(taught: Values, seed: Seed, deviation: float, reach: float) -> bool:
    """Whether the teacher of this seed deviates from its other seeds as its student does: at least half as far, or so
    far that the rest is within reach."""
    if seed not in taught or len(taught) < 2:
        return False
    own = taught[seed] - median(taught.values())
    return own * deviation > 0 and (abs(own) >= abs(deviation) / 2 or abs(deviation - own) <= reach)
