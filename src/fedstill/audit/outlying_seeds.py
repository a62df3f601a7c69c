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
        for objective in book.objectives:
            cells = {
                teacher: {seed: score.accuracy for seed, score in scores.items()}
                for teacher, name in book.pairs
                if name == objective and (scores := _students(book, (teacher, name), free))
            }
            found += [
                OutlyingSeed(teacher, objective, free, seed, value, middle)
                for teacher, seed, value, middle, reach in _outlying(book, cells, delta)
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


def _outlying(book: Book, cells: Mapping[str, Values], delta: float) -> Iterator[tuple[str, Seed, float, float, float]]:
    """Cell, seed, accuracy, the median of the cell, and how far from it a seed may be."""
    ranges = {name: spread_of(list(values.values())) for name, values in cells.items() if len(values) > 1}
    for name, values in cells.items():
        others = [spread for other, spread in ranges.items() if other != name]
        if len(values) < 3:
            continue
        middle = median(values.values())
        if len(others) < 2:
            yield from (
                (name, seed, value, middle, ALONE * delta)
                for seed, value in values.items()
                if _stands_alone(values, seed, delta)
            )
            continue
        noise = sqrt(middle * (1 - middle) / book.samples) if book.samples else 0.0
        few = len(others) < FEW_CELLS
        usual = max(max(others) if few else quantiles(others, n=4)[2], noise)
        far = (FAR_OUT_OF_FEW if few else FAR_OUT) * usual
        for seed, value in values.items():
            reach = max(CARRYING * far if _carries(cells, name, seed) else far, delta)
            if abs(value - middle) > reach:
                yield name, seed, value, middle, reach


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
