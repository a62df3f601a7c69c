"""Privacy accounting: the total epsilon of a private run, computed with Google's `dp-accounting`.

A round publishes a sum of client updates of norm at most C with Gaussian noise of deviation z C. Neighbouring data sets
are two federations of the same clients in which one client's data are replaced. This moves the sum by up to 2 C, so for
the accountant, which measures noise in units of the sensitivity, the round is a Gaussian mechanism with multiplier z /
2. (The accountant does not check the multiplier against the neighbouring relation: z would make epsilon look half as
large.)

A round whose cohort was drawn at random and is secret counts as sampled without replacement, by theorem 27 of Wang,
Balle and Kasiviswanathan, *Subsampled Rényi Differential Privacy and Analytical Moments Accountant*, 2019,
https://arxiv.org/abs/1808.00087. Rounds are composed by Rényi divergences: the epsilon is an upper bound.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec

from fedstill.core.errors import InputError
from fedstill.core.noise import StepNoise

LIBRARY = "dp_accounting"
_WHOLE_ORDERS = (*range(2, 65), 80, 96, 128, 192, 256, 512, 1024)


def check_library() -> None:
    """Raise an error early if the accounting library is missing; does not import it, which would be slow."""
    if find_spec(LIBRARY) is None:
        raise InputError("privacy needs the dp-accounting package: pip install 'fedstill[privacy]'")


def epsilon(noise: Sequence[float], drawn: Sequence[int], clients: int, delta: float) -> float:
    """The epsilon for this delta after these rounds.

    `noise` contains each round's deviation in units of C, `drawn` the number of `clients` drawn at random for it (all
    of them: no amplification by sampling).
    """
    # Sampling never hurts, but its bound can be the looser one if cohorts are large or noise is small.
    return min(_composed(noise, sizes, clients, delta) for sizes in (drawn, [clients] * len(drawn)))


def replies_epsilon(noise: Sequence[float], delta: float) -> float:
    """The epsilon of one client's replies against those who see them, such as the server.

    `noise` contains the deviation of the noise in each reply in units of C. A reply that is given twice with the same
    bits counts once; sampling does not help, since the server knows whom it asks.

    >>> replies_epsilon([], 1e-5)
    0.0
    """
    return _composed(noise, [1] * len(noise), 1, delta) if noise else 0.0


@cache
def steps_epsilon(noise: float, rate: float, steps: int, delta: float) -> float:
    """The epsilon of training steps, each of which takes every record with probability `rate`.

    `noise` is the deviation in units of the clip. Neighbouring data sets differ by one record that is there or not,
    which moves the sum of clipped gradients by up to the clip.

    >>> steps_epsilon(1.0, 0.1, 0, 1e-5)
    0.0
    """
    return _of_steps(((noise, rate, steps),), delta) if steps else 0.0


def records_epsilon(replies: Sequence[StepNoise], delta: float) -> float:
    """The epsilon of one record in all that a client sent, given the steps of training behind each reply.

    >>> records_epsilon([], 1e-5)
    0.0
    """
    steps: Counter[tuple[float, float]] = Counter()
    for one in replies:
        steps[one.deviation, one.rate] += one.steps
    return _of_steps(tuple((*kind, number) for kind, number in sorted(steps.items())), delta) if steps else 0.0


def _of_steps(kinds: Sequence[tuple[float, float, int]], delta: float) -> float:
    """The epsilon of steps of several kinds: their noise, their rate and their number."""
    library = import_module(LIBRARY)
    # Neighbours by adding or removing one. For orders that are not whole the library's series often does not converge.
    accountant = import_module(f"{LIBRARY}.rdp").RdpAccountant(orders=_WHOLE_ORDERS)
    for noise, rate, number in kinds:
        event = library.PoissonSampledDpEvent(rate, library.GaussianDpEvent(noise))
        accountant.compose(library.SelfComposedDpEvent(event, number))
    return float(accountant.get_epsilon(delta))


def _composed(noise: Sequence[float], drawn: Sequence[int], clients: int, delta: float) -> float:
    library = import_module(LIBRARY)
    accountant = import_module(f"{LIBRARY}.rdp").RdpAccountant(
        neighboring_relation=library.NeighboringRelation.REPLACE_ONE
    )
    for (multiplier, sample), rounds in sorted(Counter(zip(noise, drawn, strict=True)).items()):
        event = library.GaussianDpEvent(multiplier / 2)
        if sample < clients:
            event = library.SampledWithoutReplacementDpEvent(clients, sample, event)
        accountant.compose(library.SelfComposedDpEvent(event, rounds))
    return float(accountant.get_epsilon(delta))
