"""Whether two sets of accuracies agree more often than those of two models that were trained apart.

Two models that answer rightly with probability p, each on its own, differ on some of n test samples. The number of
right answers then differs with a variance of about n p (1 - p) / 2 (their errors overlap, which is allowed for by a
factor of four against independent answers). The spread of seeds in the table corrects this: stable trainings differ by
less, and others by more. Accuracies that agree although this variance is large are not two models.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import erf, exp, log, sqrt
from statistics import fmean, median
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from fedstill.audit.evidence import Score
from fedstill.audit.evidence_lookup import Book
from fedstill.audit.outlying_seeds import spread_of
from fedstill.audit.sample_counts import FINEST

OVERLAP = 0.5  # the variance of a difference, in units of n p (1 - p)
TELLING = 0.5  # a smaller variance says nothing: near a ceiling all models agree
APART, TOGETHER = 2.0, 0.5  # the variance of a difference, in units of that of seeds: trained apart, or with one seed
LARGEST = 50_000  # test samples, where their number is not known: trainings differ by no less
FEWEST = 2  # accuracies that agree
MOST = 0.8  # of the accuracies must agree
LEAST_SHIFTED = 6  # accuracies from which a shift can be told from an accident
STEEP = 2.0  # a line that rises more than so much faster or slower is none of copies
CLOSE = 0.04  # of the variance of a difference: what is left of it around a line on which a copy lies
EXACTLY, NEARLY = 1e-3, 1e-5  # chances below which agreement is no accident
K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True)
class TrainingNoise:
    """What makes results of two trainings differ: a finite test set, and the training itself."""

    samples: int
    spread: float = 0.0  # usual standard deviation of seeds, as a share; 0: not known
    binomial: float = 0.25  # usual p (1 - p) of these results
    guessed: bool = False  # the number of samples is the least that the printed figures allow
    apart: bool = True  # trained apart, rather than from one teacher with one seed
    shifted: bool = False  # one side was shifted: by whole samples, which are not whole units of the last digit


@dataclass(frozen=True)
class ScoreAgreement:
    """How many of the accuracies that could tell two models apart agree."""

    agreeing: int
    of: int
    slack: int  # test samples by which accuracies that agree may differ
    shift: float = 0.0  # share by which all of the second differ from the first; 0: by nothing
    factor: float = 1.0  # by which the first are multiplied before that
    within: float = 0.0  # standard deviation around this line, as a share
    chance: float = 0.0  # bound on the probability that any of the compared trainings agree like this

    @property
    def exact(self) -> bool:
        return self.slack == 0


def noise_between_trainings(book: Book) -> TrainingNoise:
    """Of models with nothing in common but their test set."""
    spread, binomial = _usual_spread(book)
    return TrainingNoise(book.least_samples, spread, binomial, not book.samples)


def noise_of_siblings(book: Book) -> TrainingNoise:
    """Of students of one teacher and seed, which may vary together, however they are trained."""
    return replace(noise_between_trainings(book), apart=False)


def _usual_spread(book: Book) -> tuple[float, float]:
    """The usual spread of seeds and p (1 - p): medians over teachers and students, so that few copies do not matter."""
    cells = [book.teacher_scores(name) for name in book.teachers]
    cells += [book.labelled_scores(pair) for pair in book.pairs]
    varied = [[score.accuracy for score in cell.values()] for cell in cells if not book.equals_a_class(cell.values())]
    several = [values for values in varied if len(values) > 1]
    if not several:
        return 0.0, 0.25
    means = [fmean(values) for values in several]
    return median(map(spread_of, several)), median(mean * (1 - mean) for mean in means)


def agreement(
    first: Mapping[K, Score],
    second: Mapping[K, Score],
    noise: TrainingNoise,
    comparisons: float = 1,
    exactly: float = EXACTLY,
) -> ScoreAgreement | None:
    """Exact or near agreement of the accuracies that both have; None where two models may well agree like this."""
    pairs = [(first[key], second[key]) for key in first if key in second]
    slack = 2 if noise.samples >= 1000 else 1 if noise.samples >= 200 else 0
    # Most pairs of results agree nowhere, and the rest takes longer.
    if sum(agree(*pair, noise, slack) for pair in pairs) < FEWEST:
        return None
    for allowed, chance in {0: exactly, slack: NEARLY if slack else exactly}.items():
        # Near a ceiling agreement says nothing, and disagreement as much as elsewhere.
        telling = [variance(*pair, noise) >= TELLING for pair in pairs]
        agrees = [agree(*pair, noise, allowed) for pair in pairs]
        counted = [pair for pair, tells, same in zip(pairs, telling, agrees, strict=True) if tells or not same]
        agreeing = sum(tells and same for tells, same in zip(telling, agrees, strict=True))
        if agreeing < max(MOST * len(counted), FEWEST):
            continue
        likely = fmean(tie_chance(*pair, noise, allowed) for pair in counted)
        probability = tail(agreeing, len(counted), likely) * comparisons
        if probability < chance:
            return ScoreAgreement(agreeing, len(counted), allowed, chance=probability)
    return None


def shifted_agreement(
    first: Mapping[K, Score], second: Mapping[K, Score], noise: TrainingNoise, comparisons: int = 1
) -> ScoreAgreement | None:
    """Accuracies that all differ by the same number of test samples; None where two models may well do so.

    The shift is read from the same accuracies, so one agreement is not counted. Figures in whole and half points differ
    by the same often, and are not looked at.
    """
    keys = [key for key in first if key in second and variance(first[key], second[key], noise) >= TELLING]
    fine = [key for key in keys if not (_is_round(first[key]) and _is_round(second[key]))]
    if len(keys) < LEAST_SHIFTED or len(fine) < MOST * len(keys):
        return None
    shift = median(second[key].accuracy - first[key].accuracy for key in keys)
    moved = {key: replace(first[key], accuracy=first[key].accuracy + shift) for key in keys}
    noise = replace(noise, shifted=True)
    agreeing = sum(agree(moved[key], second[key], noise, 0) for key in keys)
    likely = sum(tie_chance(first[key], second[key], noise, 0) for key in keys) / len(keys)
    if agreeing < MOST * len(keys) or tail(agreeing - 1, len(keys) - 1, likely) * comparisons >= NEARLY:
        return None
    return ScoreAgreement(agreeing, len(keys), 0, shift)


def linear_agreement(
    first: Mapping[K, Score],
    second: Mapping[K, Score],
    noise: TrainingNoise,
    comparisons: int = 1,
    close: float = CLOSE,
) -> ScoreAgreement | None:
    """Accuracies on one line, closer to it than two trainings would be: copies that were scaled, shifted or blurred.

    The sum of squares around a line (or a shift) in units of their least variance is at least chi-square distributed
    for two trainings. Seeds must show how much trainings vary, or the test set how much they must.
    """
    shared = [key for key in first if key in second]
    keys = [key for key in shared if variance(first[key], second[key], noise) >= TELLING]
    if len(keys) < max(LEAST_SHIFTED, MOST * len(shared)) or (noise.guessed and not noise.spread):
        return None
    if all(_is_round(first[key]) and _is_round(second[key]) for key in keys):
        return None
    from scipy.special import gammainc  # type: ignore[import-untyped]  # here, because it takes half a second

    ours, theirs = (np.array([side[key].accuracy for key in keys]) for side in (first, second))
    weight = np.array([noise.samples**2 / variance(first[key], second[key], noise) for key in keys])
    for factor, shift, fitted in _lines(ours, theirs, weight):
        squares, freedom = float(weight @ (theirs - factor * ours - shift) ** 2), len(keys) - fitted
        chance = 2 * comparisons * float(gammainc(freedom / 2, squares / 2))
        if squares <= close * freedom and chance < NEARLY:
            within = sqrt(squares / float(weight.sum()))
            return ScoreAgreement(len(keys), len(keys), 0, shift, factor=factor, within=within, chance=chance)
    return None


def _lines(
    ours: npt.NDArray[np.float64], theirs: npt.NDArray[np.float64], weight: npt.NDArray[np.float64]
) -> Iterator[tuple[float, float, int]]:
    """Factor, shift and number of fitted parameters: of a shift, and of a line that rises about as fast."""
    middle, other = (float(weight @ side / weight.sum()) for side in (ours, theirs))
    yield 1.0, other - middle, 1
    square = float(weight @ (ours - middle) ** 2)
    factor = float(weight @ ((ours - middle) * (theirs - other))) / square if square else 0.0
    if 1 / STEEP <= factor <= STEEP:
        yield factor, other - factor * middle, 2


def _is_round(score: Score) -> bool:
    """Whether an accuracy is a multiple of half a point."""
    return abs(200 * score.accuracy - round(200 * score.accuracy)) < FINEST


def variance(first: Score, second: Score, noise: TrainingNoise) -> float:
    """The least variance of the difference in right answers between two models that were trained apart.

    That of a test set of this size (of one that is not known: a large one), as far as the spread of seeds bears it out:
    models that were trained apart differ by no less than one seed does from its mean.
    """
    middle = (first.accuracy + second.accuracy) / 2
    least = OVERLAP * noise.samples * middle * (1 - middle)
    if noise.guessed:
        least *= min(noise.samples / LARGEST, 1.0)
    seeds = (noise.samples * noise.spread) ** 2
    if noise.binomial:  # near a ceiling seeds vary less than elsewhere
        seeds *= min(middle * (1 - middle) / noise.binomial, 1.0)
    if not seeds:
        return least
    if not noise.apart:
        return max(least, TOGETHER * seeds) if noise.guessed else min(least, TOGETHER * seeds)
    return max(least, seeds) if noise.guessed else max(min(least, APART * seeds), seeds)


def agree(first: Score, second: Score, noise: TrainingNoise, slack: int) -> bool:
    return abs(first.accuracy - second.accuracy) * noise.samples < _reach(first, second, noise, slack)


def _reach(first: Score, second: Score, noise: TrainingNoise, slack: int) -> float:
    """Half a test sample more than two accuracies that agree may differ by, given the printed digits.

    A copy that is printed with as many digits is the same figure; digits as fine as samples hide nothing then. Of a
    test set that is larger than supposed, more results share a figure: one unit of the last digit is allowed for.
    """
    rounded = (first.unit + second.unit) / 2 * noise.samples
    if first.unit == second.unit and not slack and not (noise.guessed or noise.shifted):
        return max(rounded, 1.0) / 2
    return slack + 0.5 + (rounded if rounded > 0.5 or first.unit != second.unit else 0.0)


def tie_chance(first: Score, second: Score, noise: TrainingNoise, slack: int) -> float:
    """The probability that two models trained apart agree to within the slack.

    >>> round(tie_chance(Score(0.5), Score(0.5), TrainingNoise(800), 0), 3)  # the variance is 100
    0.04
    """
    return erf(_reach(first, second, noise, slack) / sqrt(2 * variance(first, second, noise)))


def tail(agreeing: int, of: int, likely: float) -> float:
    """An upper bound (Hoeffding) on the probability of so many agreements or more, each with this mean probability.

    >>> tail(3, 3, 0.1) < 0.00101, tail(1, 10, 0.5)
    (True, 1.0)
    """
    rate = agreeing / of
    if rate <= likely:
        return 1.0
    if likely <= 0:
        return 0.0
    gain = rate * log(rate / likely)
    if rate < 1:
        gain += (1 - rate) * log((1 - rate) / (1 - likely))
    return exp(-of * gain)
