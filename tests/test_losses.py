"""Losses on raw logits: the objectives to the bit, gradients, invariance, and bad input."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fedstill
from fedstill import losses
from fedstill.core.errors import InputError
from fedstill.core.streams import Streams
from fedstill.core.task import Output
from fedstill.distillation import objectives

BATCH, CLASSES, OURS, THEIRS = 6, 5, 4, 7
WITHOUT_MODULE = {"detector": "it compares boxes", "labels-only": "it has no teacher"}

# By objective, the loss that is the same, and the objective's settings.
SAME: list[tuple[str, Callable[..., losses.DistillationLoss], dict[str, Any]]] = [
    ("vanilla", losses.SoftTargets, {"alpha": 0.3, "temperature": 3.0}),
    ("self", losses.SoftTargets, {"alpha": 0.3, "temperature": 3.0}),
    ("multi-teacher", losses.SoftTargets, {"alpha": 0.3, "temperature": 3.0}),
    ("basic", lambda **given: losses.SoftTargets(**given, full_labels=True), {"alpha": 0.7, "temperature": 4.0}),
    ("logit-mse", losses.LogitMSE, {"alpha": 0.4}),
    ("cosine", losses.CosineLogits, {"alpha": 0.4}),
    ("dkd", losses.DKD, {"target": 2.0, "others": 3.0, "temperature": 4.0}),
    ("feature", lambda **given: losses.FitNet(OURS, THEIRS, **given), {"alpha": 0.3, "beta": 0.2}),
    ("feature", lambda **given: losses.FitNet(OURS, THEIRS, **given), {"beta": "reference", "normalise": True}),
    ("attention", lambda **given: losses.AttentionTransfer(OURS, THEIRS, **given), {"alpha": 0.3, "beta": 0.2}),
    ("sp", losses.SimilarityLoss, {"alpha": 0.3, "beta": 0.2, "temperature": 1.5}),
    ("rkd", losses.RKD, {"beta": "reference"}),
    ("crd", lambda **given: losses.CRD(OURS, THEIRS, **given), {"alpha": 0.4, "contrast_temperature": 0.1, "width": 3}),
    ("crd+kl", lambda **given: losses.CRD(OURS, THEIRS, **given), {"alpha": 0.4, "temperature": 2.0, "width": 3}),
]
NAMES = [f"{name}-{place}" for place, (name, _, _) in enumerate(SAME)]


def drawn(*shape: int) -> Tensor:
    return torch.from_numpy(Streams(3).draw("losses", *shape).standard_normal(shape)).float()


def batch() -> dict[str, Tensor]:
    return {
        "student_logits": 3 * drawn(BATCH, CLASSES) + 2,
        "teacher_logits": 4 * drawn(BATCH, CLASSES, 1).squeeze(2) - 9,
        "labels": torch.tensor([0, 4, 2, 2, 1, 3]),
        "student_features": drawn(BATCH, OURS),
        "teacher_features": drawn(BATCH, THEIRS),
    }


def outputs(given: dict[str, Tensor]) -> tuple[Output, Output]:
    ours, theirs = (F.log_softmax(given[f"{side}_logits"], dim=1) for side in ("student", "teacher"))
    return Output(ours, given["student_features"]), Output(theirs, given["teacher_features"])


def test_every_objective_has_a_module() -> None:
    assert {name for name, _, _ in SAME} | set(WITHOUT_MODULE) == set(objectives)


@pytest.mark.parametrize("label_free", [False, True])
@pytest.mark.parametrize(("name", "make", "settings"), SAME, ids=NAMES)
def test_a_module_is_its_objective_to_the_bit(
    name: str, make: Callable[..., losses.DistillationLoss], settings: dict[str, Any], label_free: bool
) -> None:
    if name == "crd" and label_free:
        with pytest.raises(InputError, match="CRD does not train the classifier without labels: pass temperature"):
            make(**settings, label_free=True)
        return
    loss, given = make(**settings, label_free=label_free), batch()
    kind = objectives[name]
    objective = kind(kind.Options(**settings))
    objective = objective.label_free() if label_free else objective
    wanted = objective.terms(*outputs(given), None if label_free else given["labels"], loss.adapters)
    if label_free:
        given.pop("labels")
    found = loss.terms(**given)
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[term], wanted[term]) for term in wanted)
    assert torch.equal(loss(**given), torch.stack(list(wanted.values())).sum())


FUNCTIONS: list[tuple[str, Callable[[dict[str, Tensor]], Tensor], str, dict[str, Any], tuple[str, ...]]] = [
    ("soft", lambda b: losses.soft_targets(*on_logits(b), 2.0), "vanilla", {"alpha": 1.0}, ("soft-targets",)),
    ("mse", lambda b: losses.logit_mse(*on_logits(b)), "logit-mse", {"alpha": 1.0}, ("squared-difference",)),
    ("cosine", lambda b: losses.cosine_distance(*on_logits(b)), "cosine", {"alpha": 1.0}, ("cosine-distance",)),
    ("dkd", lambda b: losses.decoupled(*on_logits(b), b["labels"]), "dkd", {}, ("target-class", "other-classes")),
    ("sp", lambda b: losses.similarity(*on_features(b)), "sp", {"beta": 1.0}, ("similarity",)),
    ("rkd", lambda b: losses.relational(*on_features(b)), "rkd", {"beta": 1.0}, ("distances", "angles")),
]


def on_logits(given: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    return given["student_logits"], given["teacher_logits"]


def on_features(given: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    return given["student_features"], given["teacher_features"]


@pytest.mark.parametrize(("call", "name", "settings", "terms"), [one[1:] for one in FUNCTIONS], ids=lambda _: "")
def test_a_function_is_the_term_of_its_objective(
    call: Callable[[dict[str, Tensor]], Tensor], name: str, settings: dict[str, Any], terms: tuple[str, ...]
) -> None:
    given, kind = batch(), objectives[name]
    wanted = kind(kind.Options(**settings)).terms(*outputs(given), given["labels"])
    assert torch.equal(call(given), sum((wanted[term] for term in terms[1:]), start=wanted[terms[0]]))


def test_functions_on_mapped_features_are_the_terms_of_their_modules() -> None:
    given = batch()
    for make, function, term in (
        (losses.FitNet, losses.hint, "hint"),
        (losses.AttentionTransfer, losses.attention, "attention"),
    ):
        loss = make(OURS, THEIRS, beta=1.0)
        assert loss.adapters is not None
        mapped = loss.adapters(*on_features(given))
        assert torch.equal(function(*mapped), loss.terms(**given)[term])
    loss = losses.CRD(OURS, THEIRS, alpha=0.5, contrast_temperature=0.25)
    assert loss.adapters is not None
    embedded = loss.adapters(*on_features(given))
    assert torch.equal(0.5 * losses.contrast(*embedded, 0.25), loss.terms(**given)["contrast"])


def test_dkd_by_hand() -> None:
    """Uniform student of four classes; the teacher has 1/2 for the target and 1/4, 1/8, 1/8 for the others.

    TCKD = 1/2 ln(2) + 1/2 ln(2/3); NCKD = 1/2 ln(3/2) + 2/4 ln(3/4), of (1/2, 1/4, 1/4) against thirds; CE = ln 4.
    """
    teacher = torch.tensor([[0.5, 0.25, 0.125, 0.125]]).log() + 7
    tckd = 0.5 * math.log(2) + 0.5 * math.log(2 / 3)
    nckd = 0.5 * math.log(3 / 2) + 0.5 * math.log(3 / 4)
    loss = fedstill.losses.DKD(target=2.0, others=3.0, temperature=1.0)
    found = loss(torch.full((1, 4), -3.0), teacher, torch.tensor([0]))
    assert found.item() == pytest.approx(math.log(4) + 2 * tckd + 3 * nckd, rel=1e-6)


@pytest.mark.parametrize(("name", "make", "settings"), SAME, ids=NAMES)
def test_gradients_reach_the_student_and_the_adapters_only(
    name: str, make: Callable[..., losses.DistillationLoss], settings: dict[str, Any]
) -> None:
    loss, given = make(**settings), batch()
    for key, tensor in given.items():
        if key != "labels":
            tensor.requires_grad_()
    loss(**given).backward()
    assert given["student_logits"].grad is not None
    assert given["student_logits"].grad.abs().sum() > 0
    assert given["teacher_logits"].grad is None
    assert given["teacher_features"].grad is None
    reads = "features" in loss.objective.reads
    assert (given["student_features"].grad is not None) == reads
    weights = dict(loss.named_parameters())
    assert bool(weights) == (name in ("feature", "attention", "crd", "crd+kl"))
    assert all(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in weights.values())


@pytest.mark.parametrize(("name", "make", "settings"), SAME, ids=NAMES)
def test_a_constant_added_to_logits_changes_nothing(
    name: str, make: Callable[..., losses.DistillationLoss], settings: dict[str, Any]
) -> None:
    """To 1e-5: adding a constant rounds the logits themselves."""
    loss, given = make(**settings), batch()
    shift = drawn(BATCH, 1) * 5
    moved = {key: tensor + shift if key.endswith("logits") else tensor for key, tensor in given.items()}
    torch.testing.assert_close(loss(**moved), loss(**given), rtol=1e-5, atol=1e-5)


def test_a_teacher_in_inference_mode() -> None:
    student = drawn(BATCH, CLASSES).requires_grad_()
    with torch.inference_mode():
        teacher = drawn(BATCH, CLASSES) + 1
    losses.soft_targets(student, teacher).backward()
    assert student.grad is not None


def test_average_teachers_is_the_mean_probability() -> None:
    one, two = drawn(BATCH, CLASSES), drawn(BATCH, CLASSES, 1).squeeze(2)
    mean = (one.softmax(dim=1) + two.softmax(dim=1)) / 2
    torch.testing.assert_close(losses.average_teachers([one, two]).exp(), mean)


def changed(**new: Tensor | None) -> dict[str, Any]:
    return {**batch(), **new}


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda: losses.soft_targets(torch.ones(2, 3), torch.ones(2, 4)), r"\(2, 3\) and the teacher's \(2, 4\): pass"),
        (lambda: losses.soft_targets(torch.ones(3), torch.ones(3)), r"not floats \(batch, classes\): flatten"),
        (lambda: losses.soft_targets(torch.ones(0, 3), torch.ones(0, 3)), r"student's logits are \(0, 3\)"),
        (lambda: losses.soft_targets(torch.ones(2, 3).long(), torch.ones(2, 3)), "of torch.int64, not floats"),
        (
            lambda: losses.soft_targets(torch.ones(2, 3), torch.ones(2, 3), 0.0),
            "positive .* not 0: pass",
        ),
        (lambda: losses.contrast(torch.ones(2, 3), torch.ones(2, 3), math.nan), "temperature is positive"),
        (lambda: losses.DKD(temperature=0), r"loss DKD: temperature: Input should be greater than 0 \(got 0\)"),
        (lambda: losses.FitNet(4, 7, beta="much"), "loss FitNet: beta"),
        (lambda: losses.FitNet(0, 7), "a width of at least one, not 0"),
        (lambda: losses.DKD()(**changed(labels=None)), "reads labels: pass them, or make it with label_free=True"),
        (lambda: losses.DKD()(**changed(labels=torch.full((6,), 5))), r"range over 5\.\.5 and there are five classes"),
        (lambda: losses.DKD()(**changed(labels=torch.full((6,), -1))), r"pass numbers in 0\.\.4"),
        (lambda: losses.DKD()(**changed(labels=torch.ones(6))), "of torch.float32: pass class numbers"),
        (lambda: losses.DKD()(**changed(labels=torch.zeros(5).long())), r"labels are \(5,\)"),
        (lambda: losses.RKD()(**changed(student_features=None)), "compares features: pass student_features"),
        (lambda: losses.RKD()(**changed(student_features=torch.ones(5, 4))), "not one batch"),
        (lambda: losses.CRD(4, 8)(**batch()), "teacher's features are 7 wide, not 8: make CRD with teacher_width=7"),
        (lambda: losses.hint(torch.ones(2, 3), torch.ones(2, 4)), "map the student's to the teacher's width"),
        (lambda: losses.similarity(torch.ones(2, 3, 4), torch.ones(2, 3)), "pool or flatten the other axes"),
        (lambda: losses.average_teachers([]), "no teachers to average"),
    ],
)
def test_bad_input_gets_one_sentence(act: Callable[[], object], words: str) -> None:
    with pytest.raises(InputError, match=words) as refused:
        act()
    assert "\n" not in str(refused.value)
