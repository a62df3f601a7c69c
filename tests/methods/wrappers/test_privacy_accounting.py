from __future__ import annotations

from math import exp, log, sqrt

import pytest
from scipy import stats

from fedstill.core.errors import InputError
from fedstill.methods.wrappers import privacy_accounting
from fedstill.methods.wrappers.privacy_accounting import check_library, epsilon, replies_epsilon


def gaussian_delta(epsilon: float, sensitivity: float, deviation: float) -> float:
    """The exact delta of a Gaussian mechanism (Balle and Wang, 2018, theorem 8)."""
    mu = sensitivity / deviation
    normal = stats.norm.cdf
    return float(normal(mu / 2 - epsilon / mu) - exp(epsilon) * normal(-mu / 2 - epsilon / mu))


@pytest.mark.parametrize(("noise", "rounds"), [(1.0, 1), (4.0, 1), (4.0, 30)])
def test_epsilon_holds_for_a_change_of_two_clips_and_is_not_far_off(noise: float, rounds: int) -> None:
    """Replacing a client moves the sum by up to 2 C, against noise z C in each round.

    k such rounds are one with noise z C / sqrt(k). Rényi accounting gives an upper bound: at its epsilon the exact
    delta is below the one asked for, at an epsilon 15 % smaller it is not. The textbook bound for rho-concentrated
    privacy, rho + 2 sqrt(rho log(1/delta)) with rho = k 2^2 / (2 z^2), lies above it.
    """
    found = epsilon([noise] * rounds, [10] * rounds, 10, 1e-5)
    assert gaussian_delta(found, 2.0, noise / sqrt(rounds)) <= 1e-5
    assert gaussian_delta(0.85 * found, 2.0, noise / sqrt(rounds)) > 1e-5
    rho = 2 * rounds / noise**2
    assert found <= rho + 2 * sqrt(rho * log(1e5))


def test_epsilon_is_the_librarys() -> None:
    import dp_accounting
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.rdp import RdpAccountant

    replaced = dp_accounting.NeighboringRelation.REPLACE_ONE
    rounds = [
        dp_accounting.GaussianDpEvent(1.0),
        dp_accounting.SampledWithoutReplacementDpEvent(50, 5, dp_accounting.GaussianDpEvent(1.5)),
        dp_accounting.GaussianDpEvent(1.0),
    ]
    direct = RdpAccountant(neighboring_relation=replaced)
    for event in rounds:
        direct.compose(event)
    assert epsilon([2.0, 3.0, 2.0], [50, 5, 50], 50, 1e-6) == pytest.approx(direct.get_epsilon(1e-6), rel=1e-12)
    # The library's other accountant doubles what has to be hidden by itself, and is exact up to its grid.
    exact = PLDAccountant(neighboring_relation=replaced)
    exact.compose(dp_accounting.GaussianDpEvent(4.0))
    assert exact.get_epsilon(1e-5) <= epsilon([4.0], [50], 50, 1e-5) <= 1.15 * exact.get_epsilon(1e-5)


def test_epsilon_grows_with_rounds_and_shrinks_with_noise_and_secrecy() -> None:
    by_rounds = [epsilon([2.0] * rounds, [100] * rounds, 100, 1e-5) for rounds in range(5)]
    assert by_rounds[0] == 0.0
    assert by_rounds == sorted(set(by_rounds))
    assert epsilon([4.0], [100], 100, 1e-5) < by_rounds[1]
    assert epsilon([2.0], [10], 100, 1e-5) < 0.5 * by_rounds[1]
    # The bound for sampling is the looser one here, and sampling never hurts.
    assert epsilon([0.5] * 10, [5] * 10, 20, 1e-5) == epsilon([0.5] * 10, [20] * 10, 20, 1e-5)


def test_a_missing_library_is_said_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(privacy_accounting, "LIBRARY", "dp_accounting_that_nobody_has")
    with pytest.raises(InputError, match=r"pip install 'fedstill\[privacy\]'"):
        check_library()


def test_against_the_server_every_reply_counts_with_its_own_noise() -> None:
    """A cohort of n adds up to noise z on the sum; a single reply has z / sqrt(n), and no sampling hides it."""
    z, cohort, rounds = 2.0, 16, 5
    published = epsilon([z] * rounds, [100] * rounds, 100, 1e-5)
    seen = replies_epsilon([z / 4] * rounds, 1e-5)
    assert seen == pytest.approx(epsilon([z / sqrt(cohort)] * rounds, [1] * rounds, 1, 1e-5))
    assert seen > 4 * published
    assert replies_epsilon([z / 4] * (rounds + 1), 1e-5) > seen
    # The Rényi divergence of a Gaussian with sensitivity 2 and deviation s is 2 a / s^2: minimised over orders by hand.
    s = z / 4
    grid = (1 + step / 1000 for step in range(1, 200_000))
    by_hand = min(rounds * 2 * a / s**2 + log((a - 1) / a) - (log(1e-5) + log(a)) / (a - 1) for a in grid)
    assert seen == pytest.approx(by_hand, rel=0.02)
