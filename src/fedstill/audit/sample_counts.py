"""What printed accuracies say of the number of test samples: k/n for which n, if for any."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil, floor

import numpy as np

from fedstill.audit.evidence import Score

SINGLE_PRECISION = 5e-7  # how far a share computed with 32 bits may be off
ACCIDENT = 1e-6  # probability below which accuracies are no accident where all of them fit one number of samples
MOST_SAMPLES = 100_000  # larger test sets are not looked for
FINEST = 1e-6  # smaller differences of printed accuracies are rounding
ENOUGH = 24  # accuracies


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
    fitting = _numbers(distinct, min(floor(1 / (1.5 * coarsest)), MOST_SAMPLES))
    if not fitting:
        return 0
    by_accident = (1.5 * max(coarsest, SINGLE_PRECISION) * fitting[0]) ** len(distinct) * fitting[0]
    return fitting[0] if by_accident < ACCIDENT else 0


def _numbers(scores: Sequence[Score], most: int) -> list[int]:
    """The numbers of samples up to `most` that all of these accuracies are possible on."""
    numbers = np.arange(2, most + 1)
    for one in scores:
        low = one.accuracy - max(one.unit / 2, SINGLE_PRECISION)
        high = one.accuracy + max(one.unit, SINGLE_PRECISION)
        numbers = numbers[np.floor(high * numbers + 1e-9) >= np.ceil(low * numbers - 1e-9)]
        if not numbers.size:
            break
    return [int(number) for number in numbers]


def least_samples(scores: Iterable[Score]) -> int:
    """The fewest test samples that all of these accuracies are possible on, or that make figures so fine.

    >>> least_samples([Score(0.5, unit=0.001), Score(0.525, unit=0.001), Score(0.7, unit=0.001)])
    40
    """
    distinct = list({round(one.accuracy, 9): one for one in scores if one.unit}.values())
    coarsest = max((one.unit for one in distinct), default=1.0)
    # From half of this number of samples on, almost any figure is possible.
    fitting = _numbers(distinct, min(floor(1 / (3 * coarsest)), MOST_SAMPLES))
    return fitting[0] if fitting else min(round(1 / coarsest), MOST_SAMPLES)
