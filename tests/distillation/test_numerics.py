"""Numbers and gradients that stay finite where a formula would not."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import gradcheck

from fedstill.distillation.numerics import FLOOR, bounded, inverse, soften, unit


def test_softening_log_probabilities_is_softening_logits() -> None:
    logits = torch.tensor([[3.0, -1.0, 0.5], [100.0, 0.0, -100.0]], dtype=torch.float64)
    expected = F.log_softmax(logits / 4, dim=1)
    torch.testing.assert_close(soften(F.log_softmax(logits, dim=1), 4.0), expected, rtol=0, atol=1e-12)


def test_ordinary_log_probabilities_pass_unchanged() -> None:
    values = torch.tensor([0.0, -1e-7, -87.5, -745.0, -9999.0])
    assert torch.equal(bounded(values), values)


def test_a_class_ruled_out_has_probability_zero_and_a_finite_gradient() -> None:
    values = torch.tensor([[0.0, -math.inf]], requires_grad=True)
    softened = soften(values, 2.0)
    assert softened.exp().tolist() == [[1.0, 0.0]]
    softened[0, 1].backward()
    assert values.grad is not None
    assert values.grad.isfinite().all()
    assert values.grad[0, 1] == 0


@pytest.mark.parametrize("function", [bounded, unit, inverse], ids=lambda function: function.__name__)
def test_what_is_no_number_stays_visible(function: Any) -> None:
    assert function(torch.tensor([[math.nan, 1.0]])).isnan().any()


def test_a_silent_vector_has_no_direction_and_no_gradient() -> None:
    vectors = torch.tensor([[0.0, 0.0], [3.0, 4.0]], dtype=torch.float64, requires_grad=True)
    directions = unit(vectors)
    assert directions.tolist() == [[0.0, 0.0], pytest.approx([0.6, 0.8], abs=1e-15)]
    directions[:, 0].sum().backward()
    assert vectors.grad is not None
    # d(x/|x|)/dx = (1 - x^2/|x|^2)/|x| = 0.64/5, d(x/|x|)/dy = -xy/|x|^3 = -12/125
    assert vectors.grad.tolist() == [[0.0, 0.0], pytest.approx([0.128, -0.096], abs=1e-15)]


def test_the_gradients_are_those_of_the_formulas() -> None:
    vectors = torch.tensor([[1.0, -2.0], [0.3, 0.7]], dtype=torch.float64, requires_grad=True)
    assert gradcheck(unit, (vectors,))
    assert gradcheck(lambda values: inverse(values.square()), (vectors,))


def test_the_inverse_of_no_length() -> None:
    lengths = torch.tensor([0.0, 1e-20, 0.5], requires_grad=True)
    found = inverse(lengths)
    assert found.tolist() == [0.0, 0.0, 2.0]
    found.sum().backward()
    assert lengths.grad is not None
    assert lengths.grad.tolist() == [0.0, 0.0, -4.0]


def test_the_floor_is_zero_in_both_precisions() -> None:
    assert math.exp(FLOOR) == 0.0
    assert torch.tensor(FLOOR / 8).exp() == 0.0  # at the highest temperature of the sweeps, too
