"""A word for every teacher with every objective: did the student learn from its teacher, or from the labels?"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Literal

import numpy as np
import numpy.typing as npt

from fedstill.audit.evidence import Score, Seed
from fedstill.audit.evidence_lookup import Book, Pair, mean
from fedstill.audit.statistics import Estimate, over_seeds, paired_difference, seed_difference, widest_difference
from fedstill.audit.teacher_verdicts import ENOUGH_SEEDS, NO_SIZE
from fedstill.audit.verdicts import NOT_ASSESSABLE, Interval, PairVerdict, StudentWord

ROUNDING = 1e-9  # a difference of exactly the threshold stays one


def pair_verdict(book: Book, pair: Pair, delta: float) -> PairVerdict:
    """Accuracies are means over the seeds that each side has; the masking is over those that both have."""
    labelled, free = book.labelled_scores(pair), book.free_scores(pair)
    both = [seed for seed in labelled if seed in free]
    masking = fmean(labelled[seed].accuracy - free[seed].accuracy for seed in both) if both else None
    interval = masking_interval(book, pair, both)
    reached, taught, alone = mean(labelled.values()), book.teacher_mean(pair[0]), book.alone(pair)
    gain, gain_interval = _gain(book, pair, reached, alone)
    excess, excess_interval = _excess(book, pair)
    return PairVerdict(
        *pair,
        word=_word(book, pair, interval, delta),
        labelled=reached,
        free=mean(free.values()),
        masking=masking,
        interval=interval,
        ceiling=_ceiling(book, pair),
        synergy=None if reached is None or taught is None or alone is None else reached - max(taught, alone),
        recovery=None if reached is None or taught is None else reached - taught,
        seeds=len(both or labelled or free),
        gain=gain,
        gain_interval=gain_interval,
        excess=excess,
        excess_interval=excess_interval,
    )


def masking_interval(book: Book, pair: Pair, seeds: Sequence[Seed]) -> Interval | None:
    """Over seeds and test samples, as far as both are known; None where no seed has both students."""
    if not seeds:
        return None
    if book.own_control(pair):
        return Interval(0.0, 0.0, "none", "the objective gives the labels no weight: the student is its own control")
    labelled, free = book.labelled_scores(pair), book.free_scores(pair)
    sides = [[scores[seed] for seed in seeds] for scores in (labelled, free)]
    # Only with two seeds are other pairs asked how much seeds vary.
    others = book.variances_of_two if len(seeds) == 2 else {}
    return _difference(book, sides, [value for other, value in others.items() if other != pair])


def _gain(book: Book, pair: Pair, reached: float | None, alone: float | None) -> tuple[float | None, Interval | None]:
    """What the labelled student gained over the labels-only student, over the seeds that both have."""
    labelled, others = book.labelled_scores(pair), book.alone_scores(pair)
    seeds = [seed for seed in labelled if seed in others]
    if reached is None or alone is None:
        return None, None
    if not seeds:
        note = "labels-only students have other seeds"
        return reached - alone, Interval(reached - alone, reached - alone, "none", note)
    sides = [[scores[seed] for seed in seeds] for scores in (labelled, others)]
    gain = fmean(ours.accuracy - theirs.accuracy for ours, theirs in zip(*sides, strict=True))
    return gain, _difference(book, sides)


def _excess(book: Book, pair: Pair) -> tuple[float | None, Interval | None]:
    """How far the label-free student is above its teacher, over the seeds that both have."""
    free, taught = book.free_scores(pair), book.teacher_scores(pair[0])
    seeds = [seed for seed in free if seed in taught]
    if not seeds or len(taught) < len(book.teachers[pair[0]]):
        return None, None
    sides = [[scores[seed] for seed in seeds] for scores in (free, taught)]
    return fmean(ours.accuracy - theirs.accuracy for ours, theirs in zip(*sides, strict=True)), _difference(book, sides)


def _difference(book: Book, sides: Sequence[Sequence[Score]], others: Sequence[float] = ()) -> Interval:
    """The interval of the mean difference between two students, seed by seed."""
    seeds = len(sides[0])
    answers = _by_sample(*sides)
    if answers is not None:
        return _spanned(paired_difference(answers), "both" if seeds > 1 else "samples")
    first, second = ([score.accuracy for score in side] for side in sides)
    if book.samples and seeds > 1:
        return _spanned(seed_difference(first, second, book.samples, others), "both")
    if book.samples:
        note = "which samples each student got right is not known: the widest interval that the accuracies allow"
        return _spanned(widest_difference(first[0], second[0], book.samples), "samples", note)
    if seeds >= ENOUGH_SEEDS:
        return _spanned(over_seeds([a - b for a, b in zip(first, second, strict=True)]), "seeds", NO_SIZE)
    gap = fmean(first) - fmean(second)
    return Interval(gap, gap, "none", "one or two seeds, and the number of test samples is not known")


def _spanned(estimate: Estimate, how: Literal["both", "seeds", "samples"], note: str = "") -> Interval:
    low, high = estimate.span
    return Interval(max(low, -1.0), min(high, 1.0), how, note, estimate.error, estimate.freedom)


def _by_sample(labelled: Sequence[Score], free: Sequence[Score]) -> npt.NDArray[np.float64] | None:
    """By seed and test sample, by how much the labelled student did better."""
    lengths = {len(score.correct) for score in (*labelled, *free)}
    if len(lengths) != 1 or lengths == {0}:
        return None
    ours, theirs = (np.array([score.correct for score in side], dtype=float) for side in (labelled, free))
    return np.asarray(ours - theirs)


def _word(book: Book, pair: Pair, interval: Interval | None, delta: float) -> StudentWord:
    """Nothing is called masked without an interval that lies above the threshold."""
    if not book.labelled_scores(pair):
        return "no student"
    if any(student.missing == NOT_ASSESSABLE for student in book.free.get(pair, {}).values()):
        return NOT_ASSESSABLE
    if not book.free_scores(pair):
        return "no control"
    if interval is None or (interval.how == "none" and not book.own_control(pair)):
        return "inconclusive"
    if interval.low > delta + ROUNDING:
        return "masked"
    return "faithful" if interval.high <= delta + ROUNDING else "inconclusive"


def _ceiling(book: Book, pair: Pair) -> float | None:
    """The mean over seeds of what the teachers' outputs predict, where the objective has a ceiling."""
    teacher, objective = pair
    found = [one.ceilings[objective] for one in book.teachers.get(teacher, {}).values() if objective in one.ceilings]
    return fmean(found) if found else None
