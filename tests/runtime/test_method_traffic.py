from __future__ import annotations

import pytest

from fedstill.runtime.method_traffic import client_traffic


@pytest.fixture(scope="module")
def fedavg() -> tuple[int, int]:
    found = client_traffic("fedavg")
    assert found is not None
    return found.up, found.down


def test_fedavg_sends_its_model(fedavg: tuple[int, int]) -> None:
    """cnn-bn on digits: a little over 10,000 parameters, four bytes each, in both directions."""
    up, down = fedavg
    assert 40_000 < down < up < 50_000


def test_scaffold_sends_twice_the_weights_both_ways(fedavg: tuple[int, int]) -> None:
    found = client_traffic("scaffold")
    assert found is not None
    assert 1.9 < found.up / fedavg[0] < 2
    assert 1.9 < found.down / fedavg[1] < 2


def test_fedbn_keeps_batchnorm_to_itself(fedavg: tuple[int, int]) -> None:
    found = client_traffic("fedbn")
    assert found is not None
    assert found.up < fedavg[0]
    assert found.down < fedavg[1]


def test_local_only_sends_numbers_about_its_work() -> None:
    found = client_traffic("local-only")
    assert found is not None
    assert found.up < 500
    assert found.down < 100


def test_a_method_that_needs_a_teacher_is_left_out() -> None:
    assert client_traffic("distill") is None
