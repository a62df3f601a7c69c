from __future__ import annotations

from math import sqrt

import pytest
import torch
from scipy import stats

from fedstill.core.noise import from_operating_system, named
from fedstill.core.streams import Streams


@pytest.mark.parametrize("shape", [(), (3,), (0,), (101, 99)])
def test_the_operating_system_gives_standard_normal_numbers_of_any_shape(shape: tuple[int, ...]) -> None:
    normal = from_operating_system(Streams(1))
    drawn = normal(shape)
    assert drawn.shape == named(Streams(1))(shape).shape == shape
    assert drawn.dtype == named(Streams(1))(shape).dtype == torch.float64
    if drawn.numel() > 1000:  # true randomness: a right implementation fails about once in 10^6 runs
        assert stats.kstest(drawn.flatten().numpy(), "norm").pvalue > 1e-6
        # Two numbers come from one pair of uniform ones; they lie half the length apart.
        flat, half = drawn.flatten(), (drawn.numel() + 1) // 2
        pairs = torch.stack([flat[: len(flat) - half], flat[half:]])
        assert abs(torch.corrcoef(pairs)[0, 1].item()) < 6 / sqrt(pairs.shape[1])


def test_a_stream_gives_the_same_numbers_again_and_the_system_never_does() -> None:
    again = [named(Streams(1).at("client", 2))((50,)) for _ in range(2)]
    assert torch.equal(*again)
    assert not torch.equal(again[0], named(Streams(1).at("client", 3))((50,)))
    normal = named(Streams(1))
    assert not torch.equal(normal((50,)), normal((50,))), "one source goes on, tensor after tensor"
    assert not torch.equal(*[from_operating_system(Streams(1))((50,)) for _ in range(2)])
