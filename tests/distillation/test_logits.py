"""Objectives on outputs, against numbers derived by hand."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError
from torch import Tensor

from fedstill.core.errors import InputError
from fedstill.core.task import Output
from fedstill.distillation.logits import (
    Basic,
    Cosine,
    LogitMse,
    MultiTeacher,
    SelfDistillation,
    SelfSettings,
    Vanilla,
    average_teachers,
    cosine_distance,
    soft_targets,
)
from fedstill.distillation.objective import Mixed, Softened

Squares = tuple[Output, Output, Tensor]

# Labels 0 and 2: the student gives them 4/6 and 1/3.
CROSS_ENTROPY = (math.log(6 / 4) + math.log(3)) / 2
# KL of (1, 2, 1)/4 from (2, 1, 1)/4 is 1/4 ln 1/2 + 1/2 ln 2; of (3, 2, 2)/7 from (1, 1, 1)/3: 3/7 ln 9/7 + 4/7 ln 6/7.
DIVERGENCE = (math.log(2) / 4 + 3 / 7 * math.log(9 / 7) + 4 / 7 * math.log(6 / 7)) / 2


def numbers(terms: dict[str, Tensor]) -> dict[str, float]:
    return {name: value.item() for name, value in terms.items()}


def close(**terms: float) -> dict[str, float]:
    return pytest.approx({name.replace("_", "-"): value for name, value in terms.items()}, abs=1e-12)


def test_vanilla_by_hand(squares: Squares) -> None:
    """Half the cross-entropy, and half of T^2 = 4 times the divergence."""
    found = numbers(Vanilla().terms(*squares))
    assert found == close(cross_entropy=0.5 * CROSS_ENTROPY, soft_targets=0.5 * 4 * DIVERGENCE)


def test_vanilla_with_other_weights(squares: Squares) -> None:
    found = numbers(Vanilla(Softened(alpha=0.9, temperature=2)).terms(*squares))
    assert found == close(cross_entropy=0.1 * CROSS_ENTROPY, soft_targets=0.9 * 4 * DIVERGENCE)


def test_vanilla_at_another_temperature(squares: Squares) -> None:
    """T = 1: first row 1/6 ln 1/4 + 4/6 ln 4 = 1/2 ln 4; second 9/17 ln 27/17 + 8/17 ln 12/17."""
    student, teacher, _ = squares
    by_hand = (math.log(4) / 2 + 9 / 17 * math.log(27 / 17) + 8 / 17 * math.log(12 / 17)) / 2
    assert soft_targets(student.log_probabilities, teacher.log_probabilities, 1.0).item() == pytest.approx(
        by_hand, abs=1e-12
    )


def test_basic_by_hand(squares: Squares) -> None:
    found = numbers(Basic().terms(*squares))
    assert found == close(cross_entropy=CROSS_ENTROPY, soft_targets=0.5 * 4 * DIVERGENCE)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_self_and_multi_teacher_have_the_form_of_vanilla(squares: Squares, alpha: float) -> None:
    student, teacher, labels = squares
    expected = Vanilla(Softened(alpha=alpha)).terms(student, teacher, labels)
    for objective in (SelfDistillation(SelfSettings(alpha=alpha)), MultiTeacher(Softened(alpha=alpha))):
        found = objective.terms(student, teacher, labels)
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in found)


def test_self_has_two_generations_unless_told_otherwise() -> None:
    assert SelfDistillation().generations == 2
    assert SelfDistillation(SelfSettings(generations=4)).label_free().generations == 4
    assert Vanilla().generations == 1


def test_logit_mse_by_hand(squares: Squares) -> None:
    """Differences of logarithms: ln 4, -ln 4, 0; ln 17/27, ln 17/12, ln 17/12. A sixth of their squares."""
    squared = 2 * math.log(4) ** 2 + math.log(17 / 27) ** 2 + 2 * math.log(17 / 12) ** 2
    found = numbers(LogitMse().terms(*squares))
    assert found == close(cross_entropy=0.5 * CROSS_ENTROPY, squared_difference=0.5 * squared / 6)


def test_cosine_by_hand(squares: Squares) -> None:
    """With a = ln 4/6 and b = ln 1/6, (a, b, b) and (b, a, b) have the product 2ab + b^2 and the square a^2 + 2b^2;
    (1, 1, 1) and (c, d, d), c = ln 9/17 and d = ln 4/17, have the cosine (c + 2d)/sqrt(3 (c^2 + 2d^2)), with the signs
    of both turned."""
    a, b, c, d = (math.log(p) for p in (4 / 6, 1 / 6, 9 / 17, 4 / 17))
    first = (2 * a * b + b * b) / (a * a + 2 * b * b)
    second = -(c + 2 * d) / math.sqrt(3 * (c * c + 2 * d * d))
    found = numbers(Cosine().terms(*squares))
    assert found == close(cross_entropy=0.5 * CROSS_ENTROPY, cosine_distance=0.5 * (1 - (first + second) / 2))


def test_the_cosine_distance_is_blind_to_length(squares: Squares) -> None:
    student, teacher, _ = squares
    longer = cosine_distance(3 * student.log_probabilities, 0.5 * teacher.log_probabilities)
    torch.testing.assert_close(longer, cosine_distance(student.log_probabilities, teacher.log_probabilities))


@pytest.mark.parametrize("temperature", [1e3, 1e4])
def test_the_square_of_the_temperature_keeps_the_gradient(temperature: float) -> None:
    """As T grows, softmax(z/T) is (1 + z/T)/K for centred z, and T^2 times the gradient (r - p)/T is (z_s - z_t)/K."""
    student = torch.tensor([[1.0, -2.0, 1.0], [0.5, 0.5, -1.0]], dtype=torch.float64, requires_grad=True)
    teacher = torch.tensor([[0.0, 3.0, -3.0], [2.0, -1.0, -1.0]], dtype=torch.float64)
    (gradient,) = torch.autograd.grad(
        soft_targets(F.log_softmax(student, dim=1), F.log_softmax(teacher, dim=1), temperature), student
    )
    limit = (student.detach() - teacher) / 3 / 2  # three classes, two samples
    torch.testing.assert_close(gradient, limit, rtol=0, atol=10 / temperature)


def test_without_the_square_the_gradient_would_vanish() -> None:
    sizes = []
    for temperature in (2.0, 8.0, 32.0):
        student = torch.tensor([[1.0, -2.0, 1.0]], dtype=torch.float64, requires_grad=True)
        teacher = torch.tensor([[0.0, 3.0, -3.0]], dtype=torch.float64)
        loss = soft_targets(F.log_softmax(student, dim=1), F.log_softmax(teacher, dim=1), temperature)
        sizes.append(torch.autograd.grad(loss, student)[0].norm().item())
    assert max(sizes) / min(sizes) < 2


def test_the_mean_of_teachers_is_of_probabilities(squares: Squares) -> None:
    """(4, 1, 1)/6 and (1, 4, 1)/6 have the mean (5, 5, 2)/12; features stand side by side."""
    student, teacher, _ = squares
    mean = average_teachers([student, teacher])
    torch.testing.assert_close(mean.log_probabilities[0].exp(), torch.tensor([5.0, 5.0, 2.0], dtype=torch.float64) / 12)
    assert torch.equal(mean.features, torch.cat([student.features, teacher.features], dim=1))
    torch.testing.assert_close(average_teachers([teacher]).log_probabilities, teacher.log_probabilities)


def test_teachers_of_different_classes_have_no_mean(squares: Squares) -> None:
    student, teacher, _ = squares
    with pytest.raises(InputError, match="teachers must give one kind"):
        average_teachers([student, Output(teacher.log_probabilities[:, :2], teacher.features)])


def test_alpha_zero_is_training_on_labels_alone(squares: Squares) -> None:
    student, teacher, labels = squares
    terms = Vanilla(Softened(alpha=0)).terms(student, teacher, labels)
    assert terms["soft-targets"] == 0
    assert torch.equal(terms["cross-entropy"], F.nll_loss(student.log_probabilities, labels))


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        pytest.param(Softened, {"alpha": 1.5}, id="alpha-above-one"),
        pytest.param(Softened, {"temperature": 0}, id="temperature-zero"),
        pytest.param(Mixed, {"temperature": 2}, id="temperature-where-there-is-none"),
        pytest.param(SelfSettings, {"generations": 0}, id="no-generation"),
    ],
)
def test_settings_are_refused(kind: type[Mixed], wrong: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        kind.model_validate(wrong)
