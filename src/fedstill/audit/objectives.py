"""What each objective does over all teachers: do its students vary, and do they vary with their teachers?"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from statistics import fmean

from fedstill.audit.evidence import Seed
from fedstill.audit.evidence_lookup import Book
from fedstill.audit.outlying_seeds import OutlyingSeed
from fedstill.audit.pairs import ROUNDING
from fedstill.audit.statistics import FEWEST_POINTS, correlation, r_interval
from fedstill.audit.verdicts import ObjectiveVerdict, PairVerdict, PatternWord

TRACKS = 0.9  # r from which on students are said to follow their teachers
LOST = 0.6  # r below which students are not said to follow
LEVEL_STUDENTS = 0.1  # of the teachers' range: students that range over less are level, whatever r is
FEWEST_TO_FOLLOW = 3  # teachers
WIDE = 3  # teachers must range over more than so many times the threshold before a pattern is read

Means = Mapping[str, float]  # by teacher


def objective_verdict(
    book: Book, objective: str, pairs: Sequence[PairVerdict], delta: float, outlying: Sequence[OutlyingSeed] = ()
) -> ObjectiveVerdict:
    """Over seed means; a teacher without a student (or without a finite model) is left out.

    A pattern that single outlying seeds hide is still one: it is read again without them.
    """
    ours = [pair for pair in pairs if pair.objective == objective]
    labelled = {pair.teacher: pair.labelled for pair in ours if pair.labelled is not None}
    free = {pair.teacher: pair.free for pair in ours if pair.free is not None}
    taught = {name: mean for name in book.teachers if (mean := book.teacher_mean(name)) is not None}
    word, steady_range = pattern(taught, labelled, delta), None
    failed = {(one.teacher, one.seed) for one in outlying if one.objective == objective and not one.free}
    if failed and word == "unclear":
        steady = _without(book, objective, labelled, failed)
        word, steady_range = pattern(taught, steady, delta), _range(steady)
    return ObjectiveVerdict(
        objective=objective,
        hard_label_weight=book.weight(objective),
        mean=fmean(labelled.values()) if labelled else None,
        correlation=(r := _together(taught, labelled, delta)),
        range=_range(labelled),
        free_correlation=(free_r := _together(taught, free, delta)),
        free_range=_range(free),
        pattern=word,
        steady_range=steady_range if word != "unclear" else None,
        correlation_interval=None if r is None else r_interval(r, _common(taught, labelled)),
        free_correlation_interval=None if free_r is None else r_interval(free_r, _common(taught, free)),
    )


def _without(book: Book, objective: str, means: Means, failed: Container[tuple[str, Seed]]) -> dict[str, float]:
    """The means over seeds that did not fail."""
    kept = {
        teacher: [
            score.accuracy
            for seed, score in book.labelled_scores((teacher, objective)).items()
            if (teacher, seed) not in failed
        ]
        for teacher in means
    }
    return {teacher: fmean(values) for teacher, values in kept.items() if values}


def pattern(taught: Means, reached: Means, delta: float) -> PatternWord:
    """What accuracies alone suggest, without any control.

    Masked by pattern: students that all end within `delta` of each other, and on average that far above their
    teachers, although these range over more than three times as much. Tracking: r of 0.9 or more over four teachers or
    more, and a range of at least half the teachers'; a line that is almost flat follows nobody, however straight it is.
    """
    teachers = [name for name in reached if name in taught]
    if len(teachers) < 2:
        return "unclear"
    theirs, ours = [taught[name] for name in teachers], [reached[name] for name in teachers]
    spread, wide = max(ours) - min(ours), max(theirs) - min(theirs)
    if (
        spread <= delta + ROUNDING
        and wide > WIDE * delta + ROUNDING
        and fmean(ours) - fmean(theirs) >= delta - ROUNDING
    ):
        return "masked by pattern"
    together = correlation(theirs, ours) if len(teachers) >= FEWEST_POINTS else None
    follows = together is not None and together >= TRACKS and spread > delta and spread >= wide / 2
    return "tracks its teacher" if follows else "unclear"


def depends_on_none(taught: Means, reached: Means, delta: float) -> bool:
    """Whether students of three teachers or more end within `delta`, and these range over three times as much.

    A small range may still follow the teachers: where students are in their order, they do.
    """
    teachers = [name for name in reached if name in taught]
    theirs, ours = [taught[name] for name in teachers], [reached[name] for name in teachers]
    if len(teachers) < FEWEST_TO_FOLLOW or max(ours) - min(ours) > delta + ROUNDING:
        return False
    wide = max(theirs) - min(theirs)
    together = correlation(theirs, ours)
    flat = max(ours) - min(ours) <= LEVEL_STUDENTS * wide
    return wide > WIDE * delta + ROUNDING and (flat or together is None or together < LOST)


def _together(taught: Means, reached: Means, delta: float) -> float | None:
    """r, where it means something: over four teachers or more, which differ by more than the threshold."""
    teachers = [name for name in reached if name in taught]
    theirs = [taught[name] for name in teachers]
    if len(teachers) < FEWEST_POINTS or max(theirs) - min(theirs) <= delta:
        return None
    return correlation(theirs, [reached[name] for name in teachers])


def _common(taught: Means, reached: Means) -> int:
    return sum(name in taught for name in reached)


def _range(means: Means) -> float | None:
    """None for a single teacher, where there is nothing to range over."""
    return max(means.values()) - min(means.values()) if len(means) > 1 else None
