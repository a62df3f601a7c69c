"""Whether two sets of accuracies agree more often than those of two models that were trained apart.

Two models that answer rightly with probability p, each on its own, differ on some of n test samples. The number of
right answers then differs with a variance of at least n p (1 - p) / 2 (their errors overlap, which is allowed for by a
factor of four against independent answers). Where seeds vary by more than that, so do models of different seeds or
methods. Accuracies that agree although this variance is large are not two models.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import erf, exp, log, sqrt
from statistics import median
from typing import TypeVar

from fedstill.audit.evidence import Score
from fedstill.audit.evidence_lookup import Book
from fedstill.audit.outlying_seeds import spread_of

OVERLAP = 0.5  # the variance of a difference, in units of n p (1 - p)
TELLING = 1.5  # a smaller variance says nothing: near a ceiling all models agree
MOST = 0.8  # of the accuracies must agree
EXACTLY, NEARLY = 1e-3, 1e-5  # chances below which agreement is no accident
K = TypeVar("K", bound=Hashable)
FINEST = 1e-6  # smaller differences of printed accuracies are rounding


@dataclass(frozen=True)
class TrainingNoise:
    """What makes results of two trainings differ: a finite test set, and the training itself."""

    samples: int
    spread: float = 0.0  # standard deviation between trainings, as a share


@dataclass(frozen=True)
class ScoreAgreement:
    """How many of the accuracies that could tell two models apart agree."""

    agreeing: int
    of: int
    slack: int  # test samples by which accuracies that agree may differ

    @property
    def exact(self) -> bool:
        return self.slack == 0


def noise_between_trainings(book: Book) -> TrainingNoise:
    """With the usual spread of seeds: the median over teachers and students, so that copied ones do not matter."""
    cells = [book.teacher_scores(name) for name in book.teachers]
    cells += [book.labelled_scores(pair) for pair in book.pairs]
    varied = [[score.accuracy for score in cell.values()] for cell in cells if not book.equals_a_class(cell.values())]
    spreads = [spread_of(values) for values in varied if len(values) > 1]
    return TrainingNoise(samples_or_least(book), median(spreads) if spreads else 0.0)


def samples_or_least(book: Book) -> int:
    """The size of the test set; where it is not known, the least that the printed accuracies allow."""
    if book.samples:
        return book.samples
    scores = list(book.every_score())
    values = sorted({score.accuracy for score in scores})
    steps = [after - before for before, after in pairwise(values) if after - before > FINEST]
    step = max(min(steps, default=1.0), max((score.unit for score in scores), default=0.0), FINEST)
    return round(1 / step)


def agreement(
    first: Mapping[K, Score], second: Mapping[K, Score], noise: TrainingNoise, comparisons: int = 1
) -> ScoreAgreement | None:
    """Exact or near agreement of the accuracies that both have; None where two models may well agree like this."""
    pairs = [(first[key], second[key]) for key in first if key in second]
    telling = [pair for pair in pairs if variance(*pair, noise) >= TELLING]
    slack = 2 if noise.samples >= 1000 else 1 if noise.samples >= 200 else 0
    for allowed, chance in {0: EXACTLY, slack: NEARLY if slack else EXACTLY}.items():
        agreeing = sum(agree(*pair, noise.samples, allowed) for pair in telling)
        if agreeing < max(MOST * len(telling), 2):
            continue
        likely = sum(tie_chance(*pair, noise, allowed) for pair in telling) / len(telling)
        if tail(agreeing, len(telling), likely) * comparisons < chance:
            return ScoreAgreement(agreeing, len(telling), allowed)
    return None


def variance(first: Score, second: Score, noise: TrainingNoise) -> float:
    """The least variance of the difference in right answers between two models that were trained apart."""
    middle = (first.accuracy + second.accuracy) / 2
    return max(OVERLAP * noise.samples * middle * (1 - middle), (noise.samples * noise.spread) ** 2)


def agree(first: Score, second: Score, samples: int, slack: int) -> bool:
    return abs(first.accuracy - second.accuracy) * samples < slack + printed(first, second, samples) + 0.5


def printed(first: Score, second: Score, samples: int) -> float:
    """By how many test samples printed digits may hide a difference; digits as fine as samples hide none."""
    rounded = (first.unit + second.unit) / 2 * samples
    return rounded if rounded > 0.5 or first.unit != second.unit else 0.0


def tie_chance(first: Score, second: Score, noise: TrainingNoise, slack: int) -> float:
    """The probability that two models trained apart agree to within the slack.

    >>> round(tie_chance(Score(0.5), Score(0.5), TrainingNoise(800), 0), 3)  # the variance is 100
    0.04
    """
    reach = slack + printed(first, second, noise.samples) + 0.5
    return erf(reach / sqrt(2 * variance(first, second, noise)))


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
