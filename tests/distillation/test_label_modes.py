"""Label modes: what is left of each objective without labels, and that the two controls are one computation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedstill.core.dataset import ArrayDataset, Batch
from fedstill.core.errors import InputError
from fedstill.core.fit import Learner, Schedule, fit
from fedstill.core.optimisers import Adam
from fedstill.core.protocols import Meter
from fedstill.core.streams import Streams
from fedstill.core.task import Output
from fedstill.distillation import objectives
from fedstill.distillation.decoupled import Decoupled, DecoupledSettings
from fedstill.distillation.label_modes import LABEL_MODES, NotAssessable, proxy_under_labels, under_labels
from fedstill.distillation.logits import Vanilla
from fedstill.tasks.classification import Classification

ASSESSABLE = [name for name in objectives.names() if name not in ("crd", "labels-only", "detector")]
LABELS = torch.tensor([0, 3, 1, 1, 2])


def test_use_changes_nothing() -> None:
    for name in objectives:
        objective = objectives[name]()
        assert under_labels(objective, "use") is objective


@pytest.mark.parametrize("name", ASSESSABLE)
@pytest.mark.parametrize("mode", ["no-ce", "withhold"])
def test_what_is_left(name: str, mode: Any) -> None:
    free = under_labels(objectives[name](), mode)
    assert free.hard_label_weight == 0
    assert "labels" not in free.reads
    alone = {"vanilla", "self", "multi-teacher", "logit-mse", "cosine", "basic"}
    if name in alone:
        assert free.settings.alpha == 1.0
    else:
        assert free.settings == objectives[name]().settings


@pytest.mark.parametrize("name", ASSESSABLE)
def test_both_controls_are_one_computation(name: str, make_output: Any, make_adapters: Any) -> None:
    """The same bits of terms and gradients, with the labels, with other labels, and without."""
    results = []
    for mode, labels in (("no-ce", LABELS), ("no-ce", LABELS.flip(0)), ("withhold", None)):
        objective = under_labels(objectives[name](), mode)
        student, teacher = make_output("student"), make_output("teacher", width=4)
        student.log_probabilities.requires_grad_()
        student.features.requires_grad_()
        terms = objective.terms(student, teacher, labels, make_adapters(objective, student, teacher))
        torch.stack(list(terms.values())).sum().backward()
        results.append((terms, student.log_probabilities.grad, student.features.grad))
    first = results[0]
    assert "cross-entropy" not in first[0]
    for other in results[1:]:
        assert other[0].keys() == first[0].keys()
        assert all(torch.equal(other[0][term], first[0][term]) for term in first[0])
        for one, two in zip(first[1:], other[1:], strict=True):
            assert (one is None and two is None) or torch.equal(one, two)


def test_dkd_takes_the_teachers_first_choice(make_output: Any) -> None:
    student, teacher = make_output("student"), make_output("teacher")
    guesses = teacher.log_probabilities.argmax(dim=1)
    assert not torch.equal(guesses, LABELS)
    free = under_labels(Decoupled(DecoupledSettings(others=3)), "no-ce").terms(student, teacher, LABELS)
    expected = Decoupled(DecoupledSettings(others=3)).terms(student, teacher, guesses)
    expected.pop("cross-entropy")
    assert free.keys() == expected.keys()
    assert all(torch.equal(free[term], expected[term]) for term in free)


def test_a_share_for_the_labels_is_dropped_and_the_rest_kept(make_output: Any) -> None:
    kind = objectives["sp"]
    objective = kind(kind.Options.model_validate({"alpha": 0.3, "beta": 0.2}))
    assert objective.hard_label_weight == 0.5
    student, teacher = make_output("student"), make_output("teacher")
    with_labels = objective.terms(student, teacher, LABELS)
    without = under_labels(objective, "withhold").terms(student, teacher)
    assert list(with_labels) == ["cross-entropy", "soft-targets", "similarity"]
    assert list(without) == ["soft-targets", "similarity"]
    assert all(torch.equal(without[term], with_labels[term]) for term in without)


@pytest.mark.parametrize("mode", ["no-ce", "withhold"])
def test_crd_is_not_assessable(mode: Any) -> None:
    with pytest.raises(NotAssessable, match=r"'crd' is not assessable .*'crd\+kl'") as caught:
        under_labels(objectives["crd"](), mode)
    assert isinstance(caught.value, InputError)


def test_crd_kl_keeps_both_teacher_terms(make_output: Any, make_adapters: Any) -> None:
    objective = objectives["crd+kl"]()
    student, teacher = make_output("student"), make_output("teacher")
    adapters = make_adapters(objective, student, teacher)
    free = under_labels(objective, "no-ce").terms(student, teacher, None, adapters)
    full = objective.terms(student, teacher, LABELS, adapters)
    assert list(free) == ["contrast", "soft-targets"]
    assert all(torch.equal(free[term], full[term]) for term in free)


def test_labels_are_missed_with_a_sentence(make_output: Any) -> None:
    student, teacher = make_output("student"), make_output("teacher")
    for name in ("vanilla", "dkd"):
        with pytest.raises(InputError, match=f"'{name}' reads labels, and the batch has none"):
            objectives[name]().terms(student, teacher)


def test_an_unknown_mode() -> None:
    with pytest.raises(InputError, match="unknown label mode 'withold': did you mean 'withhold'"):
        under_labels(Vanilla(), "withold")
    assert LABEL_MODES == ("use", "no-ce", "withhold")


def proxy() -> ArrayDataset:
    draw = Streams(11).draw("proxy")
    inputs = torch.from_numpy(draw.standard_normal((26, 1, 4, 4))).float()
    return ArrayDataset(inputs=inputs, labels=torch.from_numpy(draw.integers(0, 3, 26)))


def test_the_proxy_as_the_loop_gets_it() -> None:
    data = proxy()
    assert proxy_under_labels(data, Vanilla(), "use") is data
    assert proxy_under_labels(data, Vanilla(), "no-ce") is data
    withheld = proxy_under_labels(data, Vanilla(), "withhold")
    assert withheld.labels() is None
    assert "labels" not in withheld.batch(torch.tensor([0, 1]))
    bare = data.unlabelled()
    assert proxy_under_labels(bare, Vanilla(), "no-ce") is bare
    assert proxy_under_labels(bare, objectives["feature"](), "use") is bare
    with pytest.raises(InputError, match="'vanilla' reads labels, and the proxy data has none"):
        proxy_under_labels(bare, Vanilla(), "use")
    with pytest.raises(NotAssessable):
        proxy_under_labels(data, objectives["crd"](), "withhold")


def distil(name: str, mode: Any) -> dict[str, Tensor]:
    """A small student, trained for two epochs in a label mode, with its adapters."""
    task = Classification(("a", "b", "c"), (1, 4, 4), ("mlp",))
    teacher = task.build("mlp", streams=Streams(1)).eval()
    student = task.build("mlp", streams=Streams(2))
    chosen = objectives[name]()
    objective = under_labels(chosen, mode)
    with Streams(3).ambient("adapters"):
        width = int(student.feature_size)
        adapters = objective.adapters(width, width)
    learnt = [*student.parameters(), *(adapters.parameters() if adapters else ())]

    def shared(batch: Batch) -> dict[str, Tensor]:
        with torch.inference_mode():
            said = task.forward(teacher, {"inputs": batch["inputs"]})
        return {"log_probabilities": said.log_probabilities, "features": said.features}

    def loss(output: Output, batch: Batch, extra: dict[str, Tensor]) -> dict[str, Tensor]:
        said = Output(extra["log_probabilities"], extra["features"])
        return objective.terms(output, said, batch.get("labels"), adapters)

    learner = Learner(student, loss, Adam(learnt, 1e-2), Streams(4))
    data = proxy_under_labels(proxy(), chosen, mode)
    (trained,) = fit([learner], task, data, Schedule(range(2), 8), Streams(5), Meter(), shared=shared)
    assert trained.steps == 8
    assert ("cross-entropy" in trained.terms) == (objective.hard_label_weight > 0)
    return student.state_dict()


@pytest.mark.parametrize("name", ["vanilla", "dkd", "feature", "rkd", "crd+kl"])
def test_students_of_both_controls_have_the_same_bits(name: str) -> None:
    one, two = distil(name, "no-ce"), distil(name, "withhold")
    assert all(torch.equal(one[key], two[key]) for key in one)


@pytest.mark.parametrize("name", ["vanilla", "dkd", "crd+kl"])
def test_a_student_that_sees_labels_is_another(name: str) -> None:
    one, two = distil(name, "use"), distil(name, "no-ce")
    assert not all(torch.equal(one[key], two[key]) for key in one)


def test_pure_transfer_never_saw_labels_at_the_seeds_settings() -> None:
    one, two = distil("sp", "use"), distil("sp", "withhold")
    assert all(torch.equal(one[key], two[key]) for key in one)


def test_the_cross_entropy_is_the_tasks_own(make_output: Any) -> None:
    student, teacher = make_output("student"), make_output("teacher")
    terms = objectives["basic"]().terms(student, teacher, LABELS)
    assert torch.equal(terms["cross-entropy"], F.nll_loss(student.log_probabilities, LABELS))
