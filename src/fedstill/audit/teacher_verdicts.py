"""A word for every teacher: is there anything in it that a student could learn?"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from fedstill.audit.evidence import Score, Teacher
from fedstill.audit.evidence_lookup import TINY, Book, mean
from fedstill.audit.phrases import part
from fedstill.audit.statistics import accuracy_span, share_interval, t_interval
from fedstill.audit.verdicts import Interval, TeacherVerdict, TeacherWord
from fedstill.core.numbers import capital, points, share

ENOUGH_SEEDS = 3  # for a t interval over seeds alone
NO_SIZE = "over seeds alone: the number of test samples is not known"
FAR = 3  # so many times the threshold is far
NO_BETTER = ("non-finite", "constant", "below-chance", "chance")


def teacher_verdict(book: Book, name: str, delta: float) -> TeacherVerdict:
    """The first word that applies, from the worst; what else is wrong is left to the findings."""
    seeds = list(book.teachers[name].values())
    scores = list(book.teacher_scores(name).values())
    interval = accuracy_interval(scores, book.samples)
    word, why = _word(book, seeds, scores, interval, delta)
    return TeacherVerdict(name, word, mean(scores), interval, capital(f"{why}."))


def is_collapsed(verdict: TeacherVerdict, chance: float | None, delta: float) -> bool:
    """Whether a teacher is no better than chance, rather than not told from it because its interval is wide.

    One that is not finite in some seeds alone is something else: see `is_partly_broken`.
    """
    return verdict.word in NO_BETTER and not is_partly_broken(verdict) and not cannot_tell(verdict, chance, delta)


def is_partly_broken(verdict: TeacherVerdict) -> bool:
    """Whether its outputs are not finite in some seeds, and are in others."""
    return verdict.word == "non-finite" and verdict.accuracy is not None


def cannot_tell(verdict: TeacherVerdict, chance: float | None, delta: float) -> bool:
    """Whether its interval reaches chance, and far above it as well, as its mean does not rule out."""
    if verdict.word != "chance" or verdict.accuracy is None or verdict.interval is None or chance is None:
        return False
    return _may_be_far_above(verdict.accuracy, verdict.interval, chance, delta)


def _may_be_far_above(accuracy: float, interval: Interval, chance: float, delta: float) -> bool:
    """Above chance by more than the threshold, and not surely less than far above."""
    return accuracy > chance + delta and max(accuracy, interval.high) > chance + FAR * delta


def accuracy_interval(scores: Sequence[Score], samples: int) -> Interval | None:
    """Over seeds and test samples, as far as both are known."""
    if not scores:
        return None
    values = [score.accuracy for score in scores]
    if samples:
        low, high = accuracy_span(values, samples)
        return Interval(max(low, 0.0), min(high, 1.0), "both" if len(values) > 1 else "samples")
    if len(values) >= ENOUGH_SEEDS:
        low, high = t_interval(values)
        return Interval(max(low, 0.0), min(high, 1.0), "seeds", NO_SIZE)
    middle = fmean(values)
    return Interval(middle, middle, "none", "one or two seeds, and the number of test samples is not known")


def recalibration_gain(seeds: Sequence[Teacher]) -> float | None:
    """What measuring BatchNorm's statistics anew adds to the accuracy, mean over seeds where both are known."""
    gains = [anew - before for before, anew in before_and_anew(seeds)]
    return fmean(gains) if gains else None


def before_and_anew(seeds: Sequence[Teacher]) -> list[tuple[float, float]]:
    """The accuracies before and after, of every seed that has both."""
    return [
        (one.score.accuracy, one.recalibrated)
        for one in seeds
        if one.score is not None and one.recalibrated is not None
    ]


def _word(
    book: Book, seeds: Sequence[Teacher], scores: Sequence[Score], interval: Interval | None, delta: float
) -> tuple[TeacherWord, str]:
    gain = recalibration_gain(seeds)
    cure = "" if gain is None or gain <= delta else f"; with BatchNorm measured anew it gains {points(gain)}"
    if len(scores) < len(seeds) or interval is None:
        how_many = "" if len(seeds) == 1 else f" in {part(len(seeds) - len(scores), len(seeds), 'seed')}"
        return "non-finite", f"its outputs are not finite{how_many}{cure}"
    if all(one.constant is not None and one.constant >= 1 - TINY for one in seeds):
        return "constant", f"it gives every test sample the same class{cure}"
    if all(one.constant is None for one in seeds) and book.equals_a_class(scores):
        told = "" if len(seeds) == 1 else " in every seed"
        return "constant", f"its accuracy is one class's share of the test set{told}{cure}"
    below = _below(book, seeds, scores, interval)
    if below is not None:
        return "below-chance", f"{below}{cure}"
    if book.chance is not None and interval.low <= book.chance:
        reaches = f"its interval reaches the chance level, {share(book.chance)}"
        middle = mean(scores)
        if middle is None or not _may_be_far_above(middle, interval, book.chance, delta):
            return "chance", f"{reaches}{_below_guessing(book, interval)}{cure}"
        return "chance", f"{_too_wide(book, scores)}: {reaches}, although the mean is {share(middle)}{cure}"
    if gain is not None and gain > delta:
        return "stale", f"it gains {points(gain)} once BatchNorm's statistics are measured anew"
    if book.chance is None:
        return "sound", "nothing speaks against it; whether it is above chance is unknown without class counts"
    return "sound", f"its interval lies above the chance level, {share(book.chance)}"


def _below(book: Book, seeds: Sequence[Teacher], scores: Sequence[Score], interval: Interval) -> str | None:
    """Why a teacher is worse than answers that have nothing to do with the input; None where that is not sure.

    Answers with shares q of the classes, given to samples at random, score the sum of q times the classes' shares: the
    chance agreement of Cohen's kappa. Whatever q is, that is at least the smallest share.
    """
    if not book.class_shares:
        return None
    least = min(one for one in book.class_shares if one)
    samples = book.least_samples  # fewer than there are make wider intervals
    each = all(share_interval(one.accuracy, samples)[1] < least for one in scores)
    below = interval.how != "none" and interval.high < least
    if below or each:
        so = "answers that do not depend on the input score more"
        what = "its interval lies" if below else "the interval of every seed lies"
        return f"{what} below {share(least)}, the share of the smallest class: {so}"
    if interval.how == "none":
        return None
    known = [one.guessing for one in seeds if one.guessing is not None]
    if len(known) == len(seeds) and interval.high < fmean(known):
        return f"its interval lies below {share(fmean(known))}: the same answers, given at random, would score that"
    return None


def _below_guessing(book: Book, interval: Interval) -> str:
    """Where a teacher's answers are not known: whether it is below guesses in proportion to the classes."""
    guess = sum(one**2 for one in book.class_shares)
    if interval.high >= guess:
        return ""
    return (
        f", and lies below {share(guess)}, which guesses in proportion to the classes would score: either classes are"
        " swapped, or it mostly answers rare ones"
    )


def _too_wide(book: Book, scores: Sequence[Score]) -> str:
    """What makes an interval reach chance: the test samples by themselves, or the seeds."""
    values = [score.accuracy for score in scores]
    few = bool(book.samples) and share_interval(fmean(values), book.samples)[0] <= (book.chance or 0.0)
    if few or len(values) < 2:
        return "there are too few test samples to tell"
    return f"its seeds differ too much to tell, from {share(min(values))} to {share(max(values))}"
