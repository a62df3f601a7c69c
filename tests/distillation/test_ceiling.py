"""The masking ceiling: the optimum of vanilla distillation, sample by sample, against brute force."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.optimize import minimize
from torch import Tensor

from fedstill.core.errors import InputError
from fedstill.distillation.ceiling import masking_ceiling, masking_threshold
from fedstill.distillation.logits import soft_targets
from fedstill.distillation.numerics import soften
from fedstill.distillation.objective import cross_entropy

SETTINGS = [(0.5, 2.0), (0.5, 1.0), (0.9, 4.0), (0.1, 2.0), (0.7, 8.0), (0.6, 0.5)]
IDS = [f"alpha-{alpha}-temperature-{temperature}" for alpha, temperature in SETTINGS]


def teachers(make_output: Any, classes: int, batch: int = 40, sharpness: float = 2.0) -> tuple[Tensor, Tensor]:
    logits = sharpness * make_output("ceiling", batch=batch, classes=classes).log_probabilities
    return F.log_softmax(logits, dim=1), torch.arange(batch) % classes


def brute_force(teacher: np.ndarray, label: int, alpha: float, temperature: float) -> np.ndarray:
    """The student's log-probabilities that minimise the loss as the objective computes it."""

    def loss(logits: np.ndarray) -> tuple[float, np.ndarray]:
        student = torch.tensor(logits, dtype=torch.float64, requires_grad=True)
        said = F.log_softmax(student, dim=0).unsqueeze(0)
        taught = torch.from_numpy(teacher).unsqueeze(0)
        value = (1 - alpha) * cross_entropy(said, torch.tensor([label]))
        value = value + alpha * soft_targets(said, taught, temperature)
        value.backward()
        assert student.grad is not None
        return value.item(), student.grad.numpy()

    found = minimize(loss, np.zeros(len(teacher)), jac=True, method="BFGS", options={"gtol": 1e-9})
    return F.log_softmax(torch.from_numpy(found.x), dim=0).numpy()


@pytest.mark.parametrize(("alpha", "temperature"), SETTINGS, ids=IDS)
@pytest.mark.parametrize("classes", [2, 4])
def test_the_optimum_is_found_by_brute_force(make_output: Any, classes: int, alpha: float, temperature: float) -> None:
    teacher, labels = teachers(make_output, classes, batch=6)
    ceiling = masking_ceiling(teacher, labels, alpha, temperature)
    for row in range(len(teacher)):
        found = brute_force(teacher[row].numpy(), int(labels[row]), alpha, temperature)
        np.testing.assert_allclose(ceiling.optimum[row].exp().numpy(), np.exp(found), atol=1e-6)
        assert bool(ceiling.keeps_label[row]) == (int(found.argmax()) == int(labels[row]))


@pytest.mark.parametrize(("alpha", "temperature"), SETTINGS, ids=IDS)
@pytest.mark.parametrize("sharpness", [0.1, 2.0, 30.0])
def test_the_gradient_vanishes(make_output: Any, sharpness: float, alpha: float, temperature: float) -> None:
    """r + k q = p + k [y], up to rounding, for forty classes; the loss is convex, so that this is the minimum."""
    teacher, labels = teachers(make_output, 40, batch=200, sharpness=sharpness)
    ceiling = masking_ceiling(teacher, labels, alpha, temperature)
    k = (1 - alpha) / (alpha * temperature)
    left = soften(ceiling.optimum, temperature).exp() + k * ceiling.optimum.exp()
    right = soften(teacher, temperature).exp() + k * F.one_hot(labels, 40).double()
    torch.testing.assert_close(left, right, rtol=0, atol=1e-10)
    assert torch.equal(ceiling.keeps_label, ceiling.optimum.argmax(dim=1) == labels)


@pytest.mark.parametrize(("alpha", "temperature"), SETTINGS, ids=IDS)
def test_of_two_classes_the_threshold_has_a_closed_form(alpha: float, temperature: float) -> None:
    """T ln((1+k)/(1-k)), k = (1-a)/(aT); infinite from k = 1, where no teacher is wrong enough."""
    k = (1 - alpha) / (alpha * temperature)
    threshold = masking_threshold(alpha, temperature)
    if k >= 1:
        assert threshold == math.inf
        odds = torch.tensor([1.0, 30.0, 300.0], dtype=torch.float64)
        expected = [True, True, True]
    else:
        assert threshold == pytest.approx(temperature * math.log((1 + k) / (1 - k)))
        odds = torch.tensor([threshold - 1e-6, threshold + 1e-6], dtype=torch.float64)
        expected = [True, False]
    teacher = F.log_softmax(torch.stack([torch.zeros_like(odds), odds], dim=1), dim=1)
    ceiling = masking_ceiling(teacher, torch.zeros(len(odds), dtype=torch.int64), alpha, temperature)
    assert ceiling.keeps_label.tolist() == expected
    assert (ceiling.optimum.argmax(dim=1) == 0).tolist() == expected


def test_at_the_seeds_settings_a_teacher_has_to_be_ninety_percent_sure() -> None:
    """2 ln 3 = 2.197 nats are odds of 9 : 1."""
    assert masking_threshold(0.5, 2.0) == pytest.approx(2.1972, abs=1e-4)
    assert 1 / (1 + math.exp(-masking_threshold(0.5, 2.0))) == pytest.approx(0.9)


def test_with_many_classes_it_is_the_margin_of_softened_probabilities_that_counts() -> None:
    """At T = 2 and a = 0.5, k = 1/2. Of (1, 49, 1, 1) the roots are (1, 7, 1, 1)/10, 0.6 ahead; of (1, 9, 1, 1)
    they are (1, 3, 1, 1)/6, 1/3 ahead. With two classes 9 : 1 is the limit; with four it is far from it."""
    teacher = torch.tensor([[1, 49, 1, 1], [1, 9, 1, 1]], dtype=torch.float64)
    teacher = (teacher / teacher.sum(dim=1, keepdim=True)).log()
    ceiling = masking_ceiling(teacher, torch.tensor([0, 0]), 0.5, 2.0)
    assert ceiling.keeps_label.tolist() == [False, True]
    assert ceiling.accuracy == 0.5


def test_without_labels_the_optimum_is_the_teacher(make_output: Any) -> None:
    teacher, labels = teachers(make_output, 4)
    ceiling = masking_ceiling(teacher, labels, 1.0, 2.0)
    torch.testing.assert_close(ceiling.optimum, teacher)
    assert torch.equal(ceiling.keeps_label, teacher.argmax(dim=1) == labels)
    almost = masking_ceiling(teacher, labels, 1 - 1e-9, 2.0)
    torch.testing.assert_close(almost.optimum.exp(), teacher.exp(), rtol=0, atol=1e-6)


def test_without_teacher_every_label_is_kept(make_output: Any) -> None:
    teacher, labels = teachers(make_output, 4)
    ceiling = masking_ceiling(teacher, labels, 0.0, 2.0)
    assert ceiling.accuracy == 1.0
    assert torch.equal(ceiling.optimum.exp(), F.one_hot(labels, 4).double())


def test_a_generation_learns_from_the_one_before(make_output: Any) -> None:
    teacher, labels = teachers(make_output, 4)
    first = masking_ceiling(teacher, labels, 0.5, 2.0)
    second = masking_ceiling(teacher, labels, 0.5, 2.0, generations=2)
    torch.testing.assert_close(second.optimum, masking_ceiling(first.optimum, labels, 0.5, 2.0).optimum)
    assert 0 < first.accuracy <= second.accuracy
    assert (second.keeps_label | ~first.keeps_label).all()  # a label once kept is not lost again


def test_a_class_ruled_out_and_single_precision() -> None:
    teacher = torch.tensor([[-math.inf, 0.0], [0.0, -math.inf]])
    ceiling = masking_ceiling(teacher, torch.tensor([0, 0]), 0.5, 2.0)
    assert ceiling.optimum.dtype == torch.float64
    assert ceiling.optimum.isfinite().all()
    assert ceiling.keeps_label.tolist() == [False, True]


@pytest.mark.parametrize(
    ("alpha", "temperature", "generations"), [(1.5, 2.0, 1), (0.5, 0.0, 1), (0.5, 2.0, 0)], ids=["a", "t", "g"]
)
def test_settings_without_meaning_are_refused(alpha: float, temperature: float, generations: int) -> None:
    teacher = torch.tensor([[0.5, 0.5]]).log()
    with pytest.raises(InputError, match="a masking ceiling needs"):
        masking_ceiling(teacher, torch.tensor([0]), alpha, temperature, generations)


def test_a_teacher_that_says_no_numbers_is_refused() -> None:
    with pytest.raises(InputError, match="not all numbers"):
        masking_ceiling(torch.tensor([[math.nan, 0.0]]), torch.tensor([0]), 0.5, 2.0)
