"""Decoupled distillation, against numbers derived by hand and against the divergence it splits."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from fedstill.core.task import Output
from fedstill.distillation.decoupled import Decoupled, DecoupledSettings, other_classes, target_class
from fedstill.distillation.logits import soft_targets
from fedstill.distillation.numerics import soften

# Of the softened squares, with targets 0 and 2: teacher against student.
# Target or not: (1, 3)/4 against (1, 1)/2, and (2, 5)/7 against (1, 2)/3.
TARGET = (math.log(1 / 2) / 4 + 3 / 4 * math.log(3 / 2) + 2 / 7 * math.log(6 / 7) + 5 / 7 * math.log(15 / 14)) / 2
# The other two: (2, 1)/3 against (1, 1)/2, and (3, 2)/5 against (1, 1)/2.
OTHERS = (2 / 3 * math.log(4 / 3) + math.log(2 / 3) / 3 + 3 / 5 * math.log(6 / 5) + 2 / 5 * math.log(4 / 5)) / 2


def test_dkd_by_hand(squares: tuple[Output, Output, Tensor]) -> None:
    """CE + 1 TCKD + 8 NCKD, both times T^2 = 4."""
    found = {name: value.item() for name, value in Decoupled().terms(*squares).items()}
    cross_entropy = (math.log(6 / 4) + math.log(3)) / 2
    expected = {"cross-entropy": cross_entropy, "target-class": 4 * TARGET, "other-classes": 8 * 4 * OTHERS}
    assert found == pytest.approx(expected, abs=1e-12)


def test_dkd_with_other_weights(squares: tuple[Output, Output, Tensor]) -> None:
    found = Decoupled(DecoupledSettings(target=0.5, others=2.0)).terms(*squares)
    assert found["target-class"].item() == pytest.approx(0.5 * 4 * TARGET, abs=1e-12)
    assert found["other-classes"].item() == pytest.approx(2 * 4 * OTHERS, abs=1e-12)


@pytest.mark.parametrize("temperature", [1.0, 2.0, 8.0])
def test_the_two_terms_make_up_the_divergence(make_output: Any, temperature: float) -> None:
    """KL = TCKD + (1 - p_target) NCKD, sample by sample."""
    student, teacher = make_output("student").log_probabilities, make_output("teacher").log_probabilities
    targets = torch.tensor([0, 3, 1, 1, 2])
    certainty = soften(teacher, temperature).exp()
    for row in range(len(student)):
        sample = student[row : row + 1], teacher[row : row + 1]
        target = targets[row : row + 1]
        whole = target_class(*sample, target, temperature)
        whole = whole + (1 - certainty[row, target]) * other_classes(*sample, target, temperature)
        torch.testing.assert_close(whole.squeeze(), soft_targets(*sample, temperature), rtol=1e-10, atol=1e-12)


def test_of_two_classes_there_are_no_others_to_tell_apart() -> None:
    student, teacher = (torch.tensor([p], dtype=torch.float64).log() for p in ([0.5, 0.5], [0.9, 0.1]))
    assert other_classes(student, teacher, torch.tensor([0]), 2.0) == 0
    torch.testing.assert_close(
        target_class(student, teacher, torch.tensor([0]), 2.0), soft_targets(student, teacher, 2.0)
    )


def test_a_sure_teacher_keeps_its_small_probabilities() -> None:
    """p_target = 1 - 3e-20: what is left of it is still told apart, 2 to 1, and 1 - p is no zero."""
    logits = torch.tensor([[0.0, math.log(2e-20), math.log(1e-20)]])
    student = torch.tensor([[1 / 3, 1 / 3, 1 / 3]]).log()
    found = other_classes(student, logits, torch.tensor([0]), 1.0).item()
    assert found == pytest.approx(2 / 3 * math.log(4 / 3) + math.log(2 / 3) / 3, abs=1e-6)
    assert target_class(student, logits, torch.tensor([0]), 1.0).item() == pytest.approx(math.log(3), abs=1e-6)
