"""Training with parts of the user's own, from planning to the identity of a run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedstill
from fedstill.core.dataset import ArrayDataset
from fedstill.core.errors import InputError
from fedstill.core.fit import Learner, Schedule, fit, task_loss
from fedstill.core.optimisers import Sgd
from fedstill.core.own_training import OWN, losses
from fedstill.core.protocols import Meter
from fedstill.core.streams import Streams
from fedstill.methods import methods
from fedstill.runtime.launch import assembled
from fedstill.runtime.plan import make_plan
from fedstill.tasks.classification import Classification
from fedstill.tasks.segmentation import Segmentation

SHORT: dict[str, Any] = {"data": "digits", "model": "mlp", "clients": 2, "rounds": 2}
TRAINING = {"epochs": 1, "batch": 128}


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    yield
    for registry in OWN.values():
        for name in registry.names():
            registry.forget(name)


def refused(method: str = "fedavg", **settings: Any) -> str:
    """The sentence with which an experiment is refused when it is planned."""
    with pytest.raises(InputError) as why:
        make_plan(assembled(method, None, None, {**SHORT, **settings}))
    return str(why.value)


def sgd(given: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(given, lr=0.05)


def with_plateau(given: list[nn.Parameter]) -> Any:
    return sgd(given), torch.optim.lr_scheduler.ReduceLROnPlateau(sgd(given))


def with_few_steps(given: list[nn.Parameter]) -> Any:
    inner = sgd(given)
    return inner, torch.optim.lr_scheduler.OneCycleLR(inner, max_lr=0.1, total_steps=3)


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (lambda given: 3, "must return an optimiser of torch.optim, or a pair of it and a scheduler, and returns an"),
        (lambda given: (sgd(given), 3), "and returns an object of type SGD and an object of type int"),
        (lambda given: sgd(list(nn.Linear(2, 2).parameters())), "holds 2 parameters that it was not given"),
        (torch.optim.LBFGS, r"LBFGS\) needs a closure that computes the loss again: take its steps in a local update"),
        (torch.optim.SparseAdam, "failed when it was tried on mlp: SparseAdam does not support dense gradients"),
        (lambda given: 1 / 0, "failed when it was tried on mlp: division by zero"),
        (with_plateau, "ReduceLROnPlateau. needs a metric at each step"),
        (7, "optimiser is a name, or a function of the parameters"),
    ],
)
def test_optimisers_that_cannot_work_are_refused_before_any_work(function: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        make_plan(assembled("fedavg", None, None, {**SHORT, "optimizer": function}))


def test_a_scheduler_that_ends_before_the_last_round_is_refused() -> None:
    assert "Tried to step 4 times" in refused(optimizer=with_few_steps, rounds=5)
    make_plan(assembled("fedavg", None, None, {**SHORT, "optimizer": with_few_steps, "rounds": 3}))


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (lambda logits, labels: logits, r"must return a scalar tensor .*, and returns a tensor of shape \(2, 10\)"),
        (lambda logits, labels: 3.0, "and returns an object of type float"),
        (lambda logits, labels: logits.detach().sum(), "and returns a constant"),
        (nn.BCEWithLogitsLoss(), "the loss BCEWithLogitsLoss-.* failed when it was tried on two samples with mlp"),
    ],
)
def test_losses_that_cannot_work_are_refused_before_any_work(function: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        make_plan(assembled("fedavg", None, None, {**SHORT, "loss": function}))


ALLOWED = {"fedavg", "fedavgm", "fedadam", "fedyogi", "fedadagrad", "fedmedian", "trimmed-mean", "clipped-mean", "krum"}
ALLOWED |= {"multi-krum", "fedbn", "fednova", "centralised", "fine-tuned", "local-only"}


@pytest.mark.parametrize("name", methods.names())
def test_every_method_takes_a_local_update_or_says_why_not(name: str) -> None:
    kind = methods[name]
    given = kind.Options.model_construct(**{field: info.default for field, info in kind.Options.model_fields.items()})
    method = kind.__new__(kind)
    method.settings = given
    why = method.refusal("local_update")
    assert (why is None) == (name in ALLOWED)
    assert why is None or ("local_update" in why or "objective of your own" in why or "fedavg" in why)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"local_update": lambda model: None}, "must be a function of (model, loader) or of (model, loader, context)"),
        ({"loss": nn.CrossEntropyLoss()}, "a local update computes its loss itself: leave training.loss out"),
        ({"optimizer": sgd}, "a local update makes its optimiser itself"),
        ({"training": {"precision": "bf16"}}, "a local update decides its precision itself"),
        ({"method": "fedprox", "mu": 0.1}, "set method.mu=0, or use fedavg"),
        ({"method": "local-only", "patience": 2}, "leave method.patience out"),
    ],
)
def test_what_a_local_update_leaves_no_room_for_is_refused(settings: dict[str, Any], sentence: str) -> None:
    given = {"local_update": lambda model, loader: None, **settings}
    assert sentence in refused(**given)


def test_a_loss_is_refused_where_it_would_not_be_used() -> None:
    assert "formulas assume: leave training.loss out" in refused("qkt", loss=nn.CrossEntropyLoss())
    scenes = {"data": "rooms[:5%]", "model": "detr3d-lite"}
    for given in ({"loss": nn.CrossEntropyLoss()}, {"local_update": lambda model, loader: None}):
        assert "a detector is trained on" in refused(**scenes, **given)
    assert "single precision" in refused(**scenes, training={"precision": "bf16"})
    assert "reads no labels here" in refused(
        "distill",
        objective="vanilla",
        labels="no-ce",
        loss=nn.CrossEntropyLoss(),
        teachers=[{"call": f"{__name__}:taught"}],
    )


def taught(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def test_a_weighted_loss_has_the_gradient_derived_by_hand() -> None:
    """d/dz of sum_i w[y_i] CE_i / sum_i w[y_i] is w[y_i] (softmax - onehot) / sum."""
    weight = torch.tensor([1.0, 5.0, 0.5])
    losses.register("weighted")(nn.CrossEntropyLoss(weight=weight))
    task = Classification(("a", "b", "c"), (2,), ("mlp",), own_loss="weighted", terms=("loss",))
    logits = torch.tensor([[0.1, 0.2, 0.3], [1.0, -1.0, 0.0]], requires_grad=True)

    class Constant(nn.Module):
        def forward(self, inputs: Tensor) -> Tensor:
            return logits

    labels = torch.tensor([1, 2])
    output = task.forward(Constant().train(), {"inputs": torch.zeros(2, 2), "labels": labels})
    output.terms["loss"].backward()
    each = weight[labels].unsqueeze(1)
    expected = each * (logits.detach().softmax(1) - F.one_hot(labels, 3)) / each.sum()
    torch.testing.assert_close(logits.grad, expected)
    evaluated = task.forward(Constant().eval(), {"inputs": torch.zeros(2, 2), "labels": labels})
    assert float(evaluated.terms["cross-entropy"]) == pytest.approx(float(F.cross_entropy(logits, labels)))


def test_a_loss_of_points_has_one_row_for_each() -> None:
    losses.register("sum")(nn.CrossEntropyLoss(reduction="sum"))
    task = Segmentation(("a", "b"), (4, 3), ("mine",), own_loss="sum", terms=("loss",))
    logits = torch.randn(2, 4, 2)

    class Constant(nn.Module):
        def forward(self, inputs: Tensor) -> Tensor:
            return logits

    labels = torch.tensor([[0, 1, 1, 0, 1], [1, 1, 0, 0, 0]])  # of a cloud that was cut to its first four points
    found = task.forward(Constant().train(), {"inputs": torch.zeros(2, 4, 3), "labels": labels}).terms["loss"]
    assert torch.equal(found, F.cross_entropy(logits.flatten(0, 1), labels[:, :4].flatten(), reduction="sum"))


@pytest.mark.parametrize("method", ["fedavg", "moon", "distill"])
def test_the_plain_cross_entropy_as_own_loss_changes_nothing_but_the_name(method: str, tmp_path: Path) -> None:
    plain: dict[str, Any] = {**SHORT, "training": TRAINING, "out": tmp_path}
    if method == "distill":
        plain |= {"method": "distill", "objective": "labels-only", "rounds": 1}
        plain.pop("clients")
    runs = [fedstill.run(method, **plain, **more) for more in ({}, {"loss": nn.NLLLoss()})]
    assert runs[0].sha256 == runs[1].sha256
    assert [min(set(run.journal[0].loss) - {"contrastive"}) for run in runs] == ["cross-entropy", "loss"]
    smooth = fedstill.run(method, **plain, loss=nn.CrossEntropyLoss(label_smoothing=0.2))
    assert smooth.sha256 != runs[0].sha256


def scaled(factor: float) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda logits, labels: factor * F.cross_entropy(logits, labels)


def test_another_closure_or_body_or_weight_is_another_run_and_the_same_is_found(tmp_path: Path) -> None:
    def ran(**given: Any) -> tuple[str, bool]:
        made = fedstill.run("fedavg", **{**SHORT, "rounds": 1}, training=TRAINING, out=tmp_path, **given)
        return made.path.name, made.reused

    steps = [
        {},
        {"loss": scaled(1.0)},
        {"loss": scaled(2.0)},
        {"loss": lambda logits, labels: F.cross_entropy(logits, labels) + 0 * logits.sum()},
        {"loss": nn.CrossEntropyLoss(weight=torch.ones(10))},
        {"loss": nn.CrossEntropyLoss(weight=torch.arange(1.0, 11.0))},
        {"optimizer": lambda given: torch.optim.SGD(given, lr=0.05)},
        {"optimizer": lambda given: torch.optim.SGD(given, lr=0.06)},
        {"local_update": lambda model, loader: 1.0 * len(list(loader))},
        {"local_update": lambda model, loader: 2.0 * len(list(loader))},
    ]
    first = [ran(**given) for given in steps]
    assert not any(reused for _, reused in first)
    assert len({name for name, _ in first}) == len(steps)
    again = [ran(**given) for given in [*steps[:1], {"loss": scaled(2.0)}, *steps[3:]]]
    assert again == [(name, True) for name, _ in [first[0], *first[2:]]]


def test_a_registered_name_is_looked_into_wherever_its_class_is_from() -> None:
    identities = []
    for smoothing in (0.1, 0.2, 0.1):
        losses.register("smooth")(nn.CrossEntropyLoss(label_smoothing=smoothing))
        identities.append(make_plan(assembled("fedavg", None, None, {**SHORT, "loss": "smooth"})).identity)
    assert identities[0] == identities[2] != identities[1]


def test_what_cannot_be_sent_to_workers_is_one_sentence(tmp_path: Path) -> None:
    lock = threading.Lock()

    def locked(logits: Tensor, labels: Tensor) -> Tensor:
        with lock:
            return F.cross_entropy(logits, labels)

    with pytest.raises(InputError, match=r"the loss locked-.* cannot be sent to worker processes .*: use the engine"):
        fedstill.run("fedavg", **SHORT, loss=locked, engine="processes", out=tmp_path)


def test_half_precision_changes_results_and_single_precision_none(tmp_path: Path) -> None:
    def ran(**more: Any) -> fedstill.Run:
        given = {**SHORT, "rounds": 1, "training": {**TRAINING, **more}}
        return fedstill.run("fedavg", **given, out=tmp_path)

    plain, single = ran(), ran(precision="fp32")
    assert single.reused
    assert plain.path == single.path
    assert len({plain.sha256, ran(precision="bf16").sha256, ran(precision="fp16").sha256}) == 3


def test_half_precision_that_a_model_cannot_have_is_refused() -> None:
    said = refused(data="heads[:5%]", model="dgcnn", training={"precision": "bf16"})
    assert "training.precision=bf16 failed when it was tried on two samples with dgcnn" in said


def test_steps_whose_gradients_overflow_in_half_precision_are_skipped() -> None:
    losses.register("huge")(lambda logits, labels: 1e38 * F.cross_entropy(logits, labels))
    task = Classification(("a", "b"), (1, 2, 2), ("mlp",), own_loss="huge", precision="fp16", terms=("loss",))
    model = task.build("mlp")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    data = ArrayDataset(inputs=torch.rand(8, 1, 2, 2), labels=torch.arange(8) % 2)
    learner = Learner(model, task_loss, Sgd(model.parameters(), 0.1), Streams(1))
    (done,) = fit([learner], task, data, Schedule(range(2), 4), Streams(1), Meter())
    assert done.steps == 0
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
