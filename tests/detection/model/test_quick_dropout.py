"""Dropout with quicker masks: rate, scale, gradient, names of random streams, and what falls back to torch's."""

from __future__ import annotations

import pytest
import torch

from fedstill.detection.model.quick_dropout import QuickDropout


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.5])
def test_as_many_are_dropped_as_there_should_be_and_the_mean_stays(rate: float) -> None:
    torch.manual_seed(0)
    x = torch.ones(1000, 1000)
    found = QuickDropout(rate)(x)
    values = found.unique()
    assert values[0] == 0
    assert values[1:].tolist() == pytest.approx([1 / (1 - rate)], rel=1e-4)
    assert (found == 0).double().mean().item() == pytest.approx(rate, abs=0.002)  # five standard errors
    # Rows, columns and the four elements of one draw are independent of each other.
    kept = (found[:, :4] != 0).double()
    assert torch.corrcoef(kept.t()).fill_diagonal_(0).abs().max() < 0.15
    each = (found == 0).double()
    assert each.view(-1, 4).mean(0).tolist() == pytest.approx([rate] * 4, abs=0.005)
    assert (each[:, :-1] * each[:, 1:]).mean().item() == pytest.approx(rate**2, abs=0.002)


def test_the_gradient_passes_where_elements_are_kept() -> None:
    x = torch.rand(7, 3, requires_grad=True)  # not a multiple of four
    found = QuickDropout(0.5)(x)
    found.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad != 0, found != 0)
    assert torch.equal(x.grad * x.detach(), found.detach())


def test_masks_follow_the_generator() -> None:
    layer, x = QuickDropout(0.5), torch.ones(64)
    torch.manual_seed(1)
    one, two = layer(x), layer(x)
    torch.manual_seed(1)
    assert torch.equal(layer(x), one)
    assert not torch.equal(one, two)


@pytest.mark.parametrize(("rate", "kept"), [(0.0, 1.0), (1.0, 0.0), (1e-9, 1.0)])
def test_extreme_rates_are_those_of_torch(rate: float, kept: float) -> None:
    assert torch.equal(QuickDropout(rate)(torch.ones(9)), torch.full((9,), kept))


def test_evaluation_and_empty_inputs() -> None:
    x = torch.rand(5)
    assert torch.equal(QuickDropout(0.5).eval()(x), x)
    assert QuickDropout(0.5)(torch.ones(0, 3)).shape == (0, 3)
    assert QuickDropout(0.5)(torch.ones(8, dtype=torch.float64)).dtype == torch.float64
