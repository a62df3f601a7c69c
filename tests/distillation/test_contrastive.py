"""Contrast of embeddings, against numbers derived by hand."""

from __future__ import annotations

import math

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from fedstill.core.task import Output
from fedstill.distillation.contrastive import Contrastive, ContrastiveAndSoft, ContrastSettings, contrast
from fedstill.distillation.logits import Vanilla
from fedstill.distillation.objective import Adapters

# Student (1, 0), (0, 1) and teacher (1, 0), (3, 4)/5: cosines [[1, 0.6], [0, 0.8]].
STUDENT = torch.tensor([[2.0, 0.0], [0.0, 0.5]], dtype=torch.float64)
TEACHER = torch.tensor([[7.0, 0.0], [3.0, 4.0]], dtype=torch.float64)


def by_hand(temperature: float) -> float:
    """Mean of ln(1 + exp(difference to the own cosine)): 0.6 - 1 and 0 - 0.8."""
    return (math.log1p(math.exp(-0.4 / temperature)) + math.log1p(math.exp(-0.8 / temperature))) / 2


@pytest.mark.parametrize("temperature", [1.0, 0.07])
def test_contrast_by_hand(temperature: float) -> None:
    assert contrast(STUDENT, TEACHER, temperature).item() == pytest.approx(by_hand(temperature), abs=1e-12)


def test_crd_by_hand(squares: tuple[Output, Output, Tensor], identity: Adapters) -> None:
    student, teacher, labels = squares
    sides = Output(student.log_probabilities, STUDENT), Output(teacher.log_probabilities, TEACHER)
    found = {name: value.item() for name, value in Contrastive().terms(*sides, labels, identity).items()}
    cross_entropy = (math.log(6 / 4) + math.log(3)) / 2
    assert found == pytest.approx({"cross-entropy": 0.5 * cross_entropy, "contrast": 0.5 * by_hand(0.07)}, abs=1e-12)


def test_crd_kl_is_crd_and_the_soft_targets_of_vanilla(
    squares: tuple[Output, Output, Tensor], identity: Adapters
) -> None:
    student, teacher, labels = squares
    both = ContrastiveAndSoft().terms(student, teacher, labels, identity)
    one = Contrastive().terms(student, teacher, labels, identity)
    other = Vanilla().terms(student, teacher, labels)
    assert list(both) == ["cross-entropy", "contrast", "soft-targets"]
    assert torch.equal(both["contrast"], one["contrast"])
    assert torch.equal(both["soft-targets"], other["soft-targets"])
    assert torch.equal(both["cross-entropy"], one["cross-entropy"])


def test_a_perfect_match_is_better_than_a_mix_up() -> None:
    """Own cosines 1 and 1 beside 0.6, and the other way round."""
    match, mix_up = contrast(TEACHER, TEACHER, 0.07), contrast(TEACHER.flip(0), TEACHER, 0.07)
    assert match.item() == pytest.approx(math.log1p(math.exp(-0.4 / 0.07)), rel=1e-9)
    assert mix_up.item() == pytest.approx(math.log1p(math.exp(0.4 / 0.07)), rel=1e-9)


def test_embeddings_that_say_nothing_leave_it_to_chance() -> None:
    """All alike: one of five, ln 5."""
    assert contrast(torch.ones(5, 3), torch.ones(5, 3), 0.07).item() == pytest.approx(math.log(5), rel=1e-6)


def test_heads_map_both_sides_to_128() -> None:
    adapters = Contrastive().adapters(512, 1024)
    shapes = [tuple(embedding.shape) for embedding in adapters(torch.zeros(2, 512), torch.zeros(2, 1024))]
    assert shapes == [(2, 128), (2, 128)]
    assert isinstance(adapters.teacher, nn.Linear)


def test_nothing_would_train_the_classifier_at_alpha_one() -> None:
    with pytest.raises(ValidationError):
        ContrastSettings(alpha=1)
