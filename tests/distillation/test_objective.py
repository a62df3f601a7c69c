"""What holds for every objective there is."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import gradcheck

from fedstill.core.task import Output
from fedstill.distillation import Objective, objectives
from fedstill.distillation.features import FeatureSettings
from fedstill.distillation.intermediate import IntermediateSettings
from fedstill.distillation.objective import Adapters

NAMES = [
    *("attention", "basic", "cosine", "crd", "crd+kl", "dkd", "feature", "logit-mse", "multi-teacher"),
    *("rkd", "self", "sp", "vanilla"),
]
INTERMEDIATE = ["attention", "feature", "rkd", "sp"]
LABELS = torch.tensor([0, 3, 1, 1, 2])


def total(terms: dict[str, Tensor]) -> Tensor:
    return torch.stack(list(terms.values())).sum()


def test_there_are_these() -> None:
    assert objectives.names() == sorted([*NAMES, "labels-only", "detector"])  # the last has its own tests


def test_labels_only_is_cross_entropy_and_hears_nobody(make_output: Any) -> None:
    objective = objectives["labels-only"]()
    assert (objective.least_teachers, objective.hard_label_weight, objective.reads) == (0, 1.0, {"labels"})
    student = make_output("student")
    terms = [objective.terms(student, make_output(name), LABELS) for name in ("teacher", "other")]
    assert [list(one) for one in terms] == [["cross-entropy"]] * 2
    for one in terms:
        torch.testing.assert_close(one["cross-entropy"], F.nll_loss(student.log_probabilities, LABELS))


@pytest.mark.parametrize("name", NAMES)
def test_an_objective_introduces_itself(name: str) -> None:
    kind = objectives[name]
    assert kind.name == name
    assert ": " in objectives.summary(name) or "Vanilla" in objectives.summary(name)
    assert "https://" in (kind.__doc__ or "") or name in {"basic", "crd+kl"}  # these are ours
    described = [field.description for field in kind.Options.model_fields.values()]
    assert all(described)
    assert described


@pytest.mark.parametrize(
    ("name", "weight", "reads"),
    [
        pytest.param("vanilla", 0.5, {"labels"}, id="vanilla"),
        pytest.param("self", 0.5, {"labels"}, id="self"),
        pytest.param("multi-teacher", 0.5, {"labels"}, id="multi-teacher"),
        pytest.param("logit-mse", 0.5, {"labels"}, id="logit-mse"),
        pytest.param("cosine", 0.5, {"labels"}, id="cosine"),
        pytest.param("feature", 0.0, {"features"}, id="feature"),
        pytest.param("attention", 0.0, {"features"}, id="attention"),
        pytest.param("sp", 0.0, {"features"}, id="sp"),
        pytest.param("rkd", 0.0, {"features"}, id="rkd"),
        pytest.param("crd", 0.5, {"labels", "features"}, id="crd"),
        pytest.param("crd+kl", 0.5, {"labels", "features"}, id="crd+kl"),
        pytest.param("dkd", 1.0, {"labels"}, id="dkd"),
        pytest.param("basic", 1.0, {"labels"}, id="basic"),
    ],
)
def test_what_is_declared(name: str, weight: float, reads: set[str]) -> None:
    objective = objectives[name]()
    assert objective.hard_label_weight == weight
    assert objective.reads == reads
    assert objective.assessable == (name != "crd")
    assert objective.least_teachers == (2 if name == "multi-teacher" else 1)


@pytest.mark.parametrize("name", NAMES)
def test_the_declared_weight_is_the_weight(name: str, make_output: Any, make_adapters: Any) -> None:
    objective = objectives[name]()
    student, teacher = make_output("student"), make_output("teacher")
    terms = objective.terms(student, teacher, LABELS, make_adapters(objective, student, teacher))
    if objective.hard_label_weight == 0:
        assert "cross-entropy" not in terms
    else:
        expected = objective.hard_label_weight * F.nll_loss(student.log_probabilities, LABELS)
        torch.testing.assert_close(terms["cross-entropy"], expected)


@pytest.mark.parametrize("name", INTERMEDIATE)
@pytest.mark.parametrize(
    ("alpha", "beta", "weight"),
    [
        pytest.param(0.5, "seed", 0.0, id="seed"),
        pytest.param(0.2, "seed", 0.3, id="seed-with-less-alpha"),
        pytest.param(0.5, "reference", 0.0, id="reference-is-no-share"),
        pytest.param(0.2, "reference", 0.3, id="reference-with-less-alpha"),
        pytest.param(0.7, 0.3, 0.0, id="one-in-decimals-but-not-in-binary"),
        pytest.param(0.5, 0.1, 0.4, id="number"),
        pytest.param(0.5, 20.0, 0.0, id="never-negative"),
    ],
)
def test_what_is_left_for_the_labels(name: str, alpha: float, beta: float | str, weight: float) -> None:
    kind = objectives[name]
    objective = kind(kind.Options.model_validate({"alpha": alpha, "beta": beta}))
    assert objective.hard_label_weight == pytest.approx(weight, abs=1e-12)
    assert ("labels" in objective.reads) == (weight > 0)


@pytest.mark.parametrize("name", NAMES)
def test_the_order_of_the_batch_plays_no_part(name: str, make_output: Any, make_adapters: Any) -> None:
    objective = objectives[name]()
    student, teacher = make_output("student"), make_output("teacher", width=4)
    adapters = make_adapters(objective, student, teacher)
    order = torch.tensor([3, 0, 4, 1, 2])
    shuffled = (Output(side.log_probabilities[order], side.features[order]) for side in (student, teacher))
    terms = objective.terms(student, teacher, LABELS, adapters)
    again = objective.terms(*shuffled, LABELS[order], adapters)
    for term in terms:
        torch.testing.assert_close(terms[term], again[term], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("crd")])
def test_a_student_that_equals_its_teacher_has_nothing_to_learn_from_it(
    name: str,
    make_output: Any,
    identity: Adapters,
) -> None:
    objective: Objective = objectives[name]()
    student = make_output("same")
    terms = objective.terms(student, make_output("same"), LABELS, identity)
    terms.pop("cross-entropy", None)
    assert terms
    assert {term: value.item() for term, value in terms.items()} == pytest.approx(dict.fromkeys(terms, 0.0), abs=1e-15)


@pytest.mark.parametrize(
    ("name", "beta"),
    [
        *(pytest.param(name, None, id=name) for name in NAMES if name not in INTERMEDIATE),
        *(pytest.param(name, beta, id=f"{name}-{beta}") for name in INTERMEDIATE for beta in ("seed", "reference")),
    ],
)
def test_gradients_are_those_of_the_formula(name: str, beta: str | None, make_output: Any, make_adapters: Any) -> None:
    kind = objectives[name]
    given = {} if beta is None else {"alpha": 0.3, "beta": beta}
    objective = kind(kind.Options.model_validate(given))
    student, teacher = make_output("student"), make_output("teacher", width=4)
    adapters = make_adapters(objective, student, teacher)

    def loss(logits: Tensor, features: Tensor) -> Tensor:
        return total(objective.terms(Output(F.log_softmax(logits, dim=1), features), teacher, LABELS, adapters))

    inputs = student.log_probabilities.clone().requires_grad_(), student.features.clone().requires_grad_()
    assert gradcheck(loss, inputs)


@pytest.mark.parametrize("name", [name for name in NAMES if objectives[name]().adapters(3, 4) is not None])
def test_adapters_learn(name: str, make_output: Any, make_adapters: Any) -> None:
    objective = objectives[name]()
    student, teacher = make_output("student"), make_output("teacher", width=4)
    adapters = make_adapters(objective, student, teacher)
    total(objective.terms(student, teacher, LABELS, adapters)).backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in adapters.parameters())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("widths", [(3, 3), (2, 6), (6, 2)], ids=["equal", "wider-teacher", "wider-student"])
def test_a_batch_of_two_and_any_widths(
    name: str, widths: tuple[int, int], make_output: Any, make_adapters: Any
) -> None:
    objective = objectives[name]()
    student, teacher = (make_output(side, batch=2, width=width) for side, width in zip("st", widths, strict=True))
    logits, features = student.log_probabilities.clone().requires_grad_(), student.features.clone().requires_grad_()
    adapters = make_adapters(objective, student, teacher)
    loss = total(objective.terms(Output(logits, features), teacher, LABELS[:2], adapters))
    loss.backward()
    assert loss.isfinite()
    assert logits.grad is None or logits.grad.isfinite().all()
    assert features.grad is None or features.grad.isfinite().all()


SAME = torch.tensor([[1.0, 2.0, 3.0]])
DEGENERATE = {
    "silent-student": (torch.zeros(3, 3), SAME * torch.tensor([[1.0], [2.0], [5.0]])),
    "silent-teacher": (SAME * torch.tensor([[1.0], [2.0], [5.0]]), torch.zeros(3, 3)),
    "equal-samples": (SAME.repeat(3, 1), SAME.repeat(3, 1)),
    "tiny": (torch.full((3, 3), 1e-30), torch.full((3, 3), 1e-30)),
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("case", list(DEGENERATE))
def test_degenerate_features_leave_gradients_finite(name: str, case: str, make_adapters: Any) -> None:
    objective = objectives[name]()
    ours, theirs = DEGENERATE[case]
    features = ours.clone().requires_grad_()
    logits = torch.zeros(3, 4, requires_grad=True)
    student = Output(F.log_softmax(logits, dim=1), features)
    teacher = Output(F.log_softmax(torch.arange(12.0).view(3, 4), dim=1), theirs)
    loss = total(objective.terms(student, teacher, LABELS[:3], make_adapters(objective, student, teacher)))
    loss.backward()
    assert loss.isfinite()
    assert logits.grad is None or logits.grad.isfinite().all()
    assert features.grad is None or (features.grad.isfinite().all() and features.grad.abs().max() < 1e6)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("side", ["student", "teacher", "both"])
def test_a_class_that_is_ruled_out_leaves_gradients_finite(
    name: str, side: str, make_output: Any, make_adapters: Any
) -> None:
    objective = objectives[name]()
    certain = torch.tensor([[0.0, -math.inf, -math.inf, -math.inf]] * 5, dtype=torch.float64)
    student, teacher = make_output("student"), make_output("teacher")
    if side != "teacher":
        student = Output(certain.clone(), student.features)
    if side != "student":
        teacher = Output(certain.clone(), teacher.features)
    student.log_probabilities.requires_grad_()
    loss = total(objective.terms(student, teacher, LABELS, make_adapters(objective, student, teacher)))
    loss.backward()
    assert loss.isfinite()
    assert student.log_probabilities.grad is None or student.log_probabilities.grad.isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_the_teacher_is_a_constant_even_if_made_in_inference_mode(
    name: str, make_output: Any, make_adapters: Any
) -> None:
    objective = objectives[name]()
    student, teacher = make_output("student"), make_output("teacher", width=4)
    adapters = make_adapters(objective, student, teacher)
    with torch.inference_mode():
        frozen = Output(teacher.log_probabilities.clone(), teacher.features.clone())
    teacher.log_probabilities.requires_grad_()
    teacher.features.requires_grad_()
    results = []
    for each in (teacher, frozen):
        features = student.features.clone().requires_grad_()
        logits = student.log_probabilities.clone().requires_grad_()
        terms = objective.terms(Output(logits, features), each, LABELS, adapters)
        total(terms).backward()
        results.append((total(terms).item(), logits.grad, features.grad))
    assert teacher.log_probabilities.grad is None
    assert teacher.features.grad is None
    assert results[0][0] == results[1][0]
    for one, other in zip(results[0][1:], results[1][1:], strict=True):
        assert (one is None and other is None) or torch.equal(one, other)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_no_number_shows(name: str, make_output: Any, make_adapters: Any) -> None:
    objective = objectives[name]()
    student, teacher = make_output("student"), make_output("teacher")
    broken = Output(student.log_probabilities * math.nan, student.features * math.nan)
    terms = objective.terms(broken, teacher, LABELS, make_adapters(objective, student, teacher))
    assert all(value.isnan() for value in terms.values())


@pytest.mark.parametrize("beta", ["refrence", -1, math.inf])
def test_a_beta_that_means_nothing_is_refused(beta: object) -> None:
    for kind in (IntermediateSettings, FeatureSettings):
        with pytest.raises(ValueError, match="beta"):
            kind.model_validate({"beta": beta})


def test_a_number_may_be_written_as_text() -> None:
    assert IntermediateSettings.model_validate({"beta": "0.25"}).beta == 0.25
