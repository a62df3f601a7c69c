"""What printed accuracies say of the number of test samples: k/n for which n, if for any."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import ceil, floor

import numpy as np

from fedstill.audit.evidence import Score

SINGLE_PRECISION = 5e-7  # how far a share computed with 32 bits may be off
ACCIDENT = 1e-6  # probability below which accuracies are no accident where all of them fit one number of samples
MOST_SAMPLES = 100_000  # larger test sets are not looked for
FINEST = 1e-6  # smaller differences of printed accuracies are rounding
ENOUGH = 24  # accuracies
FIRST = 30  # accuracies that most numbers of samples fail on


def is_possible(score: Score, samples: int) -> bool:
    """Whether some k/n is printed like this, be it rounded or cut off.

    >>> is_possible(Score(0.9125, unit=0.0001), 80), is_possible(Score(0.9190, unit=0.0001), 80)
    (True, False)
    >>> is_possible(Score(0.6666, unit=0.0001), 3), is_possible(Score(0.6667, unit=0.0001), 3)
    (True, True)
    """
    low = score.accuracy - max(score.unit / 2, SINGLE_PRECISION)
    high = score.accuracy + max(score.unit, SINGLE_PRECISION)
    return floor(high * samples + 1e-9) >= ceil(low * samples - 1e-9)


def deduced_samples(scores: Iterable[Score]) -> int:
    """The least number of test samples that all of these accuracies are possible on; 0 where it could be an accident.

    The figures must be much finer than one sample: a figure that has nothing to do with n samples fits them with a
    probability of about 1.5 units of its last digit times n, and all of them must. So few figures that all may have an
    even number of right answers by accident show nothing.

    >>> deduced_samples([Score(k / 80, unit=0.0001) for k in range(50, 75)])
    80
    >>> deduced_samples([Score(k / 100, unit=0.01) for k in range(50, 75)])
    0
    """
    known = [one for one in scores if one.unit and 0 < one.accuracy < 1]
    distinct = list({round(one.accuracy, 9): one for one in known}.values())
    if len(known) < ENOUGH:
        return 0
    coarsest = max(one.unit for one in distinct)
    for samples in _numbers(distinct[:FIRST], floor(1 / (1.5 * coarsest))):
        by_accident = (1.5 * max(coarsest, SINGLE_PRECISION) * samples) ** len(distinct) * samples
        if all(is_possible(one, samples) for one in distinct):
            return samples if by_accident < ACCIDENT else 0
    return 0


def _numbers(scores: Sequence[Score], most: int) -> list[int]:
    """The numbers of samples up to `most` that the first few accuracies are possible on."""
    numbers = np.arange(2, min(most, MOST_SAMPLES) + 1)
    for one in scores:
        low = one.accuracy - max(one.unit / 2, SINGLE_PRECISION)
        high = one.accuracy + max(one.unit, SINGLE_PRECISION)
        numbers = numbers[np.floor(high * numbers + 1e-9) >= np.ceil(low * numbers - 1e-9)]
    return [int(number) for number in numbers]


def least_samples(scores: Iterable[Score]) -> int:
    """The fewest test samples that make figures so fine.

    >>> least_samples([Score(0.5, unit=0.001), Score(0.525, unit=0.001), Score(0.7, unit=0.001)])
    40
    """
    known = list(scores)
    values = sorted({one.accuracy for one in known})
    steps = [after - before for before, after in pairwise(values) if after - before > FINEST]
    return round(1 / max(min(steps, default=1.0), max((one.unit for one in known), default=0.0), FINEST))
