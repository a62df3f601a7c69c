"""Sums in fixed point, with numbers derived by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedstill.core.errors import RunError
from fedstill.core.sums import FORMATS, FixedPoint, Layout, Summand, added, check_range, declares_sums, to_integers
from fedstill.methods import methods

QUARTERS = FixedPoint(clip=8.0, bits=2)
LINES = (Summand("w", "update"), Summand("n", "count", weighted=False))
LAYOUT = Layout({"w": (2,), "n": ()}, LINES, {**FORMATS, "update": QUARTERS})


def test_two_clients_by_hand() -> None:
    """In quarters: 3 x (1.25, -0.5) is 3 x (5, -2), and 1 x (-9, 2) is (-8 x 4, 8), since -9 is clipped to -8."""
    one, clipped = LAYOUT.encoded({"w": torch.tensor([1.25, -0.5]), "n": torch.tensor(4)}, 3, 2)
    assert one.view(np.int64).tolist() == [3, 0, 4, 15, -6]
    assert clipped == 0
    other, clipped = LAYOUT.encoded({"w": torch.tensor([-9.0, 2.0]), "n": torch.tensor(7)}, 1, 2)
    assert other.view(np.int64).tolist() == [1, 1, 7, -32, 8]
    assert clipped == 1
    sums, clipped = LAYOUT.decoded(added([one, other]), 2)
    assert (sums.weight, clipped, int(sums.totals["n"])) == (4, 1, 11)
    assert sums.totals["w"].tolist() == [-17 / 4, 2 / 4]
    assert sums.mean("w").tolist() == [-17 / 16, 2 / 16]


def test_halves_are_rounded_to_even_and_what_is_not_finite_counts_as_clipped() -> None:
    whole, clipped = to_integers(torch.tensor([0.125, 0.375, float("inf"), float("nan")]), QUARTERS)
    assert whole.tolist() == [0, 2, 32, 0]
    assert clipped == 2


@pytest.mark.parametrize(("weight", "refused"), [(2**24, False), (2**25, True), (-1, True)])
def test_a_weight_that_could_overflow_is_refused(weight: int, refused: bool) -> None:
    """64 x 2^32 = 2^38 is the largest change; of one client with weight 2^25 it is 2^63, one too many."""
    if refused:
        with pytest.raises(RunError, match="could overflow"):
            check_range(FORMATS["update"], weight, 1)
    else:
        check_range(FORMATS["update"], weight, 1)


@given(st.floats(1e-3, 2.0**20), st.integers(8, 48), st.integers(1, 1000), st.integers(1, 200))
def test_whatever_range_is_accepted_cannot_overflow(clip: float, bits: int, weight: int, most: int) -> None:
    """The largest value of all clients, of the heaviest weight, in numbers without limit."""
    form = FixedPoint(clip, bits)
    try:
        check_range(form, weight, most)
    except RunError:
        return
    whole, _ = to_integers(torch.tensor([clip, -clip, 2 * clip, -2 * clip], dtype=torch.float64), form)
    assert all(abs(one) <= form.largest and abs(one) * weight * most < 2**63 for one in whole.tolist())


@given(st.lists(st.tuples(st.floats(-100, 100), st.integers(0, 1000)), min_size=1, max_size=20))
def test_a_sum_of_any_values_is_exact_in_any_order(clients: list[tuple[float, int]]) -> None:
    layout = Layout({"w": (1,)}, (Summand("w", "update"),), FORMATS)
    vectors = [
        layout.encoded({"w": torch.tensor([value], dtype=torch.float64)}, weight, len(clients))[0]
        for value, weight in clients
    ]
    sums, clipped = layout.decoded(added(vectors), len(clients))
    assert np.array_equal(added(vectors), added(vectors[::-1]))
    whole = sum(weight * round(max(-64.0, min(64.0, value)) * 2**32) for value, weight in clients)
    assert sums.totals["w"].item() == float(whole) / 2**32
    assert sums.weight == sum(weight for _, weight in clients)
    assert clipped == sum(abs(value) > 64 for value, _ in clients)


def test_only_methods_that_declare_it_aggregate_from_sums() -> None:
    able = {name for name in methods if declares_sums(methods[name])}
    assert {"fedavg", "fedprox", "fedavgm", "fedadam", "fedyogi", "fedadagrad", "fednova", "scaffold"} <= able
    assert {"feddyn", "fedbn", "ditto", "moon", "fed3d", "fine-tuned"} <= able
    single = {"fedmedian", "krum", "multi-krum", "trimmed-mean", "clipped-mean", "feddf", "qkt", "fedgkt", "fedmd"}
    assert not able & single


def test_a_method_of_the_users_own_declares_anew_what_it_changes() -> None:
    kind = methods["fedprox"]

    class OwnTraining(kind):  # type: ignore[valid-type, misc]
        def loss(self, *given: object) -> object:
            raise NotImplementedError

    class OwnWeights(kind):  # type: ignore[valid-type, misc]
        def weights(self, replies: object) -> list[float]:
            raise NotImplementedError

    class Declared(OwnWeights):
        from_sums = True

    assert [declares_sums(one) for one in (OwnTraining, OwnWeights, Declared)] == [True, False, True]
