"""Findings about what a teacher added: students that are what labels alone make, or less."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from math import sqrt
from statistics import fmean, variance

from fedstill.audit.case import Case
from fedstill.audit.evidence import Score
from fedstill.audit.phrases import called, named, part
from fedstill.audit.teacher_verdicts import FAR
from fedstill.audit.ties import ScoreAgreement, TrainingNoise, agreement, samples_or_least
from fedstill.audit.verdicts import Finding, Interval, PairVerdict
from fedstill.core.numbers import capital, share

NOTHING = 0.2  # of the threshold: a gain below this is none
SMALL = 0.6  # of the threshold: a gain that cannot be larger is as good as none
SURE = 3.0  # standard errors below labels-only students from which on a teacher harms


def gain_findings(case: Case) -> Iterator[Finding]:
    spread = _variance_of_gains(case)
    yield from _labels_alone(case, spread)
    yield from _harmful(case, spread)


def signed(difference: float) -> str:
    """A difference in points, with its sign.

    >>> signed(0.0402), signed(-0.002)
    ('+4.0', '-0.2')
    """
    return f"{100 * difference:+.1f}"


def gain_told(pair: PairVerdict) -> str:
    """A gain with its interval, for the end of a sentence."""
    interval = pair.gain_interval
    known = interval is not None and interval.how != "none"
    span = f", 95 % interval {_span(interval)}" if known and interval is not None else ""
    return f"{signed(pair.gain or 0.0)}\u00a0points{span}"


def _span(interval: Interval) -> str:
    return f"{signed(interval.low)} to {signed(interval.high)}"


def includes_nothing(pair: PairVerdict) -> bool:
    """Whether the interval of the gain includes 0; without an interval nothing is excluded."""
    interval = pair.gain_interval
    return interval is None or interval.how == "none" or interval.low <= 0 <= interval.high


def _labels_alone(case: Case, spread: float) -> Iterator[Finding]:
    copied = _copied(case)
    same = [pair for pair in case.pairs if case.reads_labels(pair) and _shows_no_gain(case, pair, spread)]
    if not same and not copied:
        return
    worst = min(same, key=lambda pair: abs(pair.gain or 0.0), default=None)
    show = "shows" if len(same) == 1 else "show"
    told = [f"{part(len(same), len(case.pairs), 'pair')} {show} no gain over the labels-only student"] if same else []
    if worst is not None:
        alone = case.book.alone((worst.teacher, worst.objective))
        every = f"{named([called(pair) for pair in same])}; " if len(same) > 1 else ""
        told[0] += (
            f": {every}{called(worst)} reaches {share(worst.labelled)}, labels alone {share(alone)}"
            f" ({gain_told(worst)})"
        )
    told += [
        f"with {objective} {how.agreeing} of {how.of} accuracies are those of the labels-only student"
        for objective, how in copied.items()
    ]
    yield Finding(
        "serious" if copied else "warning",
        "labels-alone",
        "Students are as accurate as with labels alone",
        f"{capital('; '.join(told))}.",
        "Do not credit the teacher with these accuracies: a student that never met it is as accurate."
        + (" Check that these students were distilled at all." if copied else ""),
    )


def _shows_no_gain(case: Case, pair: PairVerdict, spread: float) -> bool:
    """The gain is next to nothing, and seeds and test samples suffice to say so, or something else explains it."""
    if pair.gain is None or not includes_nothing(pair):
        return False
    far = pair.recovery is not None and pair.recovery > FAR * case.delta
    if (pair.word == "masked" or far) and abs(pair.gain) <= case.delta:
        return True
    others = [one for one in case.pairs if one.objective == pair.objective and one.gain is not None]
    all_alike = len(others) > 1 and all(abs(one.gain or 0.0) <= NOTHING * case.delta for one in others)
    reach = 2 * case.delta if all_alike else SMALL * case.delta
    return abs(pair.gain) <= NOTHING * case.delta and pair.gain + 2 * _error(case, pair, spread) <= reach


def _error(case: Case, pair: PairVerdict, spread: float) -> float:
    """The standard error of a gain, over seeds and over test samples."""
    level = pair.labelled or 0.0
    by_samples = level * (1 - level) / samples_or_least(case.book)
    return sqrt(spread / max(pair.seeds, 1) + by_samples)


def _copied(case: Case) -> dict[str, ScoreAgreement]:
    """Objectives whose students are, seed by seed, the labels-only student."""
    found: dict[str, ScoreAgreement] = {}
    for objective in case.book.objectives:
        pairs = [pair for pair in case.book.pairs if pair[1] == objective]
        ours: dict[Hashable, Score] = {
            (pair, seed): score for pair in pairs for seed, score in case.book.labelled_scores(pair).items()
        }
        theirs: dict[Hashable, Score] = {
            (pair, seed): score for pair in pairs for seed, score in case.book.alone_scores(pair).items()
        }
        how = agreement(ours, theirs, TrainingNoise(samples_or_least(case.book)), len(case.book.objectives))
        if how is not None:
            found[objective] = how
    return found


def _harmful(case: Case, spread: float) -> Iterator[Finding]:
    """Below the labels-only student by more than seeds and test samples explain."""
    found = [
        pair
        for pair in case.pairs
        if pair.gain is not None
        and case.reads_labels(pair)
        and pair.gain < -max(NOTHING * case.delta, SURE * _error(case, pair, spread))
    ]
    if not found:
        return
    found.sort(key=lambda pair: pair.gain or 0.0)
    worst = found[0]
    alone, taught = case.book.alone((worst.teacher, worst.objective)), case.book.teacher_mean(worst.teacher)
    weaker = taught is not None and alone is not None and taught < alone
    because = f"; its teacher is at {share(taught)}" if taught is not None else ""
    yield Finding(
        "serious" if (worst.gain or 0.0) < -case.delta else "warning",
        "harmful-teacher",
        "Some students are worse than with labels alone",
        f"{named([called(pair) for pair in found])}: most with {called(worst)}, which reaches {share(worst.labelled)}"
        f" where labels alone reach {share(alone)} ({gain_told(worst)}){because}.",
        (
            "The teacher is worse than labels alone and pulls its student down: leave it out, or lower its weight."
            if weaker
            else "Distillation costs accuracy here: look at the weight of the teacher's term and at the temperature."
        ),
    )


def _variance_of_gains(case: Case) -> float:
    """Between seeds, pooled over pairs: one pair's three seeds say little of it."""
    found = []
    for pair in case.book.pairs:
        ours, theirs = case.book.labelled_scores(pair), case.book.alone_scores(pair)
        gains = [ours[seed].accuracy - theirs[seed].accuracy for seed in ours if seed in theirs]
        if len(gains) > 1:
            found.append(variance(gains))
    return fmean(found) if found else 0.0
