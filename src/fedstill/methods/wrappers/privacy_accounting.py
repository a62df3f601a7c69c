"""What the rounds of a private run add up to, by the accountant of Google's `dp-accounting`.

A round publishes a sum of client updates of norm at most C with Gaussian noise of deviation z C. Neighbours are two
federations of the same clients in which one client's data are replaced by any others. That moves the sum by up to 2 C,
so for the accountant, which counts noise in units of what it has to hide, the round is a Gaussian mechanism with
multiplier z / 2. (It takes the multiplier as given, whatever the neighbours are: z would make epsilon look half as
large.)

A round whose cohort was drawn at random and is known to nobody counts as sampled without replacement, by theorem 27 of
Wang, Balle and Kasiviswanathan, *Subsampled Rényi Differential Privacy and Analytical Moments Accountant*, 2019,
https://arxiv.org/abs/1808.00087. Rounds are composed by Rényi divergences: the epsilon is an upper bound.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec

from fedstill.core.errors import InputError

LIBRARY = "dp_accounting"


def check_library() -> None:
    """Refuse to start what could not be accounted for; looks for the library without paying for its import."""
    if find_spec(LIBRARY) is None:
        raise InputError("privacy needs the dp-accounting package: pip install 'fedstill[privacy]'")


def epsilon(noise: Sequence[float], drawn: Sequence[int], clients: int, delta: float) -> float:
    """The epsilon that goes with delta after these rounds.

    `noise` has each round's deviation in units of C, `drawn` how many of the `clients` were drawn at random for it
    (all of them: nothing is gained by sampling).
    """
    # Sampling never hurts, but the bound for it can be the looser one, where cohorts are large or noise is small.
    return min(_composed(noise, sizes, clients, delta) for sizes in (drawn, [clients] * len(drawn)))


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
