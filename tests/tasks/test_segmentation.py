"""Segmentation as a task: metrics by hand and against slow sets, labels under augmentation, whole runs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedstill
from fedstill.core.dataset import ArrayDataset, Subset
from fedstill.core.errors import InputError
from fedstill.core.streams import Streams
from fedstill.core.task import Output
from fedstill.data import Bundle, Source, datasets
from fedstill.data.augmentation import PointAugmentation
from fedstill.data.head_parts import PARTS, make_head_parts
from fedstill.data.point_labels import has_point_labels, shape_kinds
from fedstill.runtime.assemble import make_experiment
from fedstill.runtime.plan import make_plan
from fedstill.tasks.classification import Classification
from fedstill.tasks.segmentation import Segmentation
from fedstill.tasks.task_choice import task_kind, task_of

LITE = "pointnet2-segmentation-lite"
CLASSES = ("a", "b", "c", "d")


@datasets.register("few-head-parts")
def few_head_parts(source: Source) -> Bundle:
    """A few heads with parts, for tests."""
    clouds, labels, kinds = (torch.from_numpy(array) for array in make_head_parts(per_class=6, points=192))
    first = torch.arange(24) % 6 < 4
    train, test = (
        ArrayDataset(inputs=clouds[rows], labels=labels[rows], category=kinds[rows]) for rows in (first, ~first)
    )
    return Bundle(source.name, train, test, PARTS, "cloud", (192, 3))


class Answers(nn.Module):
    """Says what it was told to: the inputs' first coordinate is the class, with a given probability."""

    def __init__(self, certainty: float = 0.7, classes: int = 4) -> None:
        super().__init__()
        self.certainty, self.classes = certainty, classes

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        said = nn.functional.one_hot(inputs[..., 0].nan_to_num().long(), self.classes)
        probabilities = torch.where(said == 1, self.certainty, (1 - self.certainty) / (self.classes - 1))
        log_probabilities = probabilities.log()
        log_probabilities[inputs[..., 0].isnan()] = torch.nan
        return log_probabilities, inputs


def saying(guesses: Tensor, labels: Tensor) -> ArrayDataset:
    return ArrayDataset(inputs=guesses.unsqueeze(2).expand(-1, -1, 3).float(), labels=labels)


def task(augmentation: Any = None) -> Segmentation:
    more = {} if augmentation is None else {"augmentation": augmentation}
    return Segmentation(CLASSES, (6, 3), (LITE,), **more)


def measure(data: ArrayDataset, *models: nn.Module) -> dict[str, float]:
    return dict(task().summarise(task().score(models or [Answers()], data)))


def test_metrics_by_hand() -> None:
    labels = torch.tensor([[0, 0, 0, 1, 1, 2], [0, 0, 1, 1, 1, 1]])
    guesses = torch.tensor([[0, 0, 1, 1, 1, 1], [0, 0, 1, 1, 1, 3]])
    found = measure(saying(guesses, labels))
    # Class 0: 4 of 5 found, none wrongly. Class 1: 5 of 6, and 2 others. Class 2: 0 of 1. Class 3 has no points.
    assert found["accuracy"] == pytest.approx(9 / 12)
    assert found["class_accuracy"] == pytest.approx((4 / 5 + 5 / 6 + 0) / 3)
    assert found["mean_iou"] == pytest.approx((4 / 5 + 5 / 8 + 0) / 3)
    # First shape: 2/3, 2/4, 0. Second: 2/2, 3/4, and class 3, which it was said to have, 0.
    assert found["instance_iou"] == pytest.approx(((2 / 3 + 1 / 2 + 0) / 3 + (1 + 3 / 4 + 0) / 3) / 2)
    assert found["loss"] == pytest.approx(-(9 * np.log(0.7) + 3 * np.log(0.1)) / 12, rel=1e-6)
    assert found["non_finite"] == 0
    assert found["constant"] == pytest.approx(7 / 12)


def slow_metrics(labels: Tensor, guesses: Tensor) -> dict[str, float]:
    """With sets of (shape, point), and no matrix anywhere."""
    places = [(shape, point) for shape in range(len(labels)) for point in range(labels.shape[1])]
    truth = {c: {p for p in places if labels[p] == c} for c in range(4)}
    said = {c: {p for p in places if guesses[p] == c} for c in range(4)}
    present = [c for c in range(4) if truth[c]]
    shapes = []
    for shape in range(len(labels)):
        ious = []
        for c in range(4):
            a, b = ({p for p in found[c] if p[0] == shape} for found in (truth, said))
            if a | b:
                ious.append(len(a & b) / len(a | b))
        shapes.append(sum(ious) / len(ious))
    return {
        "accuracy": sum(len(truth[c] & said[c]) for c in range(4)) / len(places),
        "class_accuracy": sum(len(truth[c] & said[c]) / len(truth[c]) for c in present) / len(present),
        "mean_iou": sum(len(truth[c] & said[c]) / len(truth[c] | said[c]) for c in present) / len(present),
        "instance_iou": sum(shapes) / len(shapes),
    }


@pytest.mark.parametrize("seed", range(4))
def test_metrics_are_the_slow_ones_and_scores_add_up(seed: int) -> None:
    generator = Streams(seed).draw("test")
    labels = torch.from_numpy(generator.integers(0, 3 + seed % 2, (37, 11)))
    guesses = torch.from_numpy(np.where(generator.random((37, 11)) < 0.6, labels, generator.integers(0, 4, (37, 11))))
    data = saying(guesses, labels)
    found = measure(data)
    for name, value in slow_metrics(labels, guesses).items():
        assert found[name] == pytest.approx(value), name
    parts = [task().score([Answers()], Subset(data, rows)) for rows in torch.arange(37).split(15)]
    added = {name: torch.stack([part[name] for part in parts]).sum(dim=0) for name in parts[0]}
    assert task().summarise(added) == pytest.approx(found)


def test_outputs_that_are_no_numbers_are_counted() -> None:
    data = saying(torch.tensor([[0.0, torch.nan, 1.0, torch.nan]]), torch.tensor([[0, 0, 1, 1]]))
    found = measure(data)
    assert found["non_finite"] == 0.5
    assert found["accuracy"] == 0.75
    assert np.isnan(found["loss"])


def test_the_loss_is_the_mean_over_points() -> None:
    data = saying(torch.tensor([[0, 1, 2, 3]]), torch.tensor([[0, 1, 0, 0]]))
    output = task().forward(Answers(), data.batch(torch.tensor([0])))
    assert set(output.terms) == set(task().terms)
    expected = -(2 * np.log(0.7) + 2 * np.log(0.1)) / 4
    assert float(output.terms["cross-entropy"]) == pytest.approx(expected, rel=1e-6)
    assert task().forward(Answers(), data.unlabelled().batch(torch.tensor([0]))).terms == {}
    assert task().predict(Answers(), data.columns["inputs"]).shape == (1, 4, 4)


def test_a_dropped_point_takes_the_label_of_the_point_it_becomes() -> None:
    inputs = torch.randn(8, 50, 3)
    batch = {"inputs": inputs, "labels": torch.arange(50).expand(8, 50) % 4 + 1}
    batch["labels"] = torch.where(torch.arange(50) == 0, 0, batch["labels"])
    changed = task(PointAugmentation()).augment(batch, Streams(3).draw("test"))
    moved = changed["inputs"]
    dropped = (moved == moved[:, :1]).all(dim=2)
    assert 50 < int(dropped.sum()) < 350
    assert (changed["labels"][dropped] == 0).all()
    assert torch.equal(changed["labels"][~dropped], batch["labels"][~dropped])
    kept = task(PointAugmentation(dropout=0.0)).augment(batch, Streams(3).draw("test"))
    assert torch.equal(kept["labels"], batch["labels"])


def test_clouds_cut_to_their_first_points_keep_the_first_labels() -> None:
    bundle = few_head_parts(Source("few", Path()))
    cut = bundle.with_points(64)
    model = task().build(LITE)
    seven = Segmentation(PARTS, (64, 3), (LITE,))
    scores = seven.score([seven.build(LITE)], cut.test)
    assert int(scores["confusion"].sum()) == 8 * 64
    labels = bundle.test.labels()
    assert labels is not None
    assert scores["confusion"].sum(dim=1).tolist() == torch.bincount(labels[:, :64].flatten(), minlength=7).tolist()
    assert model.head[-1].out_features == 4


def test_the_data_decides_the_task() -> None:
    points = ArrayDataset(inputs=torch.zeros(4, 6, 3), labels=torch.zeros(4, 6, dtype=torch.int64))
    whole = ArrayDataset(inputs=torch.zeros(4, 6, 3), labels=torch.tensor([0, 1, 1, 0]))
    assert has_point_labels(points)
    assert not has_point_labels(whole)
    assert not has_point_labels(whole.unlabelled())
    assert task_kind("cloud", has_point_labels(points), LITE, "x") is Segmentation
    assert task_kind("cloud", has_point_labels(whole), "pointnet2-lite", "x") is Classification
    assert (task_of(LITE), task_of("pointnet2-lite"), task_of("cnn")) == (Segmentation, Classification, Classification)
    with pytest.raises(InputError, match=f"x has a label for every point, but model 'pointnet2-lite' .* {LITE}"):
        task_kind("cloud", has_point_labels(points), "pointnet2-lite", "x")
    with pytest.raises(InputError, match=f"model '{LITE}' labels every point of a cloud, but x has one label"):
        task_kind("cloud", has_point_labels(whole), LITE, "x")


def test_kinds_to_partition_by() -> None:
    inputs, labels = torch.zeros(4, 6, 3), torch.zeros(4, 6, dtype=torch.int64)
    kinds = torch.tensor([2, 0, 1, 2])
    assert torch.equal(shape_kinds(ArrayDataset(inputs=inputs, labels=kinds)), kinds)
    with_column = ArrayDataset(inputs=inputs, labels=labels, category=kinds)
    assert torch.equal(shape_kinds(with_column), kinds)
    assert shape_kinds(Subset(with_column, torch.tensor([3, 1]))).tolist() == [2, 0]
    assert shape_kinds(ArrayDataset(inputs=inputs, labels=labels)).tolist() == [0, 0, 0, 0]


def test_a_plan_fills_in_model_task_and_shards_of_kinds() -> None:
    given = {"method": "fedavg", "data": "few-head-parts", "points": 128, "clients": 4, "partition": "label-skew"}
    plan = make_plan(make_experiment({**given, "rounds": 1, "validation": 0.25}))
    assert isinstance(plan.task, Segmentation)
    assert plan.experiment.model == LITE
    assert plan.experiment.training.batch == 8
    held = [
        set(shape_kinds(Subset(plan.clients.data, plan.clients.shards.rows(client))).tolist()) for client in range(4)
    ]
    assert held == [{0}, {1}, {2}, {3}]  # each client has one kind of head, and all parts of it
    counts = plan.evaluator.class_counts(0)
    assert counts.shape == (7,)
    assert int(counts.sum()) == 192 * len(plan.clients.shards.rows(0))  # every point that is stored has a label
    assert plan.evaluator.validation is not None
    assert len(plan.evaluator.validation) == 4


@pytest.mark.parametrize("method", ["centralised", "fedavg", "local-only"])
def test_tiny_runs_from_end_to_end(method: str, tmp_path: Path) -> None:
    clients = {} if method == "centralised" else {"clients": 2, "partition": "iid"}
    training = {"epochs": 2, "batch": 4}
    run = fedstill.run(method, data="few-head-parts", points=96, rounds=3, training=training, out=tmp_path, **clients)
    metrics = run.journal[-1].metrics
    assert run.result.finite
    assert 0 < metrics["accuracy"] <= 1
    if method != "local-only":
        assert set(metrics) >= {"accuracy", "class_accuracy", "mean_iou", "instance_iou", "loss", "non_finite"}
        assert metrics["loss"] < run.journal[0].metrics["loss"]
    else:
        assert run.journal[-1].evaluation.personal.clients == 2


def test_parts_of_heads_are_learnt(tmp_path: Path) -> None:
    run = fedstill.run("centralised", data="few-head-parts", points=96, rounds=16, out=tmp_path, training={"batch": 4})
    metrics = run.journal[-1].metrics
    # Saying cranium everywhere gives 0.40 of the points and 0.40/7 = 0.06 of mean IoU.
    assert metrics["accuracy"] > 0.7
    assert metrics["mean_iou"] > 0.35


def ones(probability: Tensor, label: Tensor) -> Tensor:
    return torch.ones_like(probability)


def test_samples_by_hand() -> None:
    """-ln 1/2 with weight 1/2, -ln 1/4 with weight 3/4 (what the model lacks of certainty), over two samples."""
    logits = torch.tensor([[0.5, 0.5], [0.25, 0.75]]).log().requires_grad_()
    batch = {"labels": torch.tensor([0, 0])}
    task = Classification(("a", "b"), (1, 8, 8), ("cnn",))
    terms = task.weighted(Output(logits, logits), batch, lambda probability, label: 1 - probability)
    assert list(terms) == ["cross-entropy"]
    assert terms["cross-entropy"].item() == pytest.approx((0.5 * math.log(2) + 0.75 * math.log(4)) / 2)
    terms["cross-entropy"].backward()
    # Nothing flows through the weights: minus weight over two, at the label alone.
    assert logits.grad is not None
    torch.testing.assert_close(logits.grad, torch.tensor([[-0.25, 0.0], [-0.375, 0.0]]))


def test_weights_of_one_are_the_tasks_own_loss_to_the_bit() -> None:
    logits = torch.randn(301, 7, generator=torch.Generator().manual_seed(0)).log_softmax(1)
    labels = torch.arange(301) % 7
    task = Classification(tuple("abcdefg"), (1, 8, 8), ("cnn",))
    gradients = []
    for way in ("own", "weighted"):
        leaf = logits.clone().requires_grad_()
        if way == "own":
            loss = F.nll_loss(leaf, labels)
        else:
            loss = task.weighted(Output(leaf, leaf), {"labels": labels}, ones)["cross-entropy"]
        loss.backward()
        gradients.append((loss.detach(), leaf.grad))
    assert torch.equal(gradients[0][0], gradients[1][0])
    assert gradients[0][1] is not None
    assert gradients[1][1] is not None
    assert torch.equal(gradients[0][1], gradients[1][1])


def test_points_by_hand() -> None:
    """Four points of two clouds; weights 1 for class a, 3 for class b."""
    probabilities = torch.tensor([[[0.5, 0.5], [0.2, 0.8]], [[0.9, 0.1], [0.4, 0.6]]])
    batch = {"inputs": torch.zeros(2, 2, 3), "labels": torch.tensor([[0, 1], [0, 1]])}
    task = Segmentation(("a", "b"), (2, 3), ("pointnet2-segmentation-lite",))
    seen: list[int] = []

    def weigh(probability: Tensor, label: Tensor) -> Tensor:
        seen.append(len(label))
        return 1 + 2.0 * label

    terms = task.weighted(Output(probabilities.log(), probabilities), batch, weigh)
    expected = -(math.log(0.5) + 3 * math.log(0.8) + math.log(0.9) + 3 * math.log(0.6)) / 4
    assert terms["cross-entropy"].item() == pytest.approx(expected)
    assert seen == [4]


@pytest.mark.parametrize("kind", [Classification, Segmentation])
def test_without_labels_there_is_no_loss(kind: type[Classification]) -> None:
    task = kind(("a", "b"), (2, 3), ("pointnet",))
    assert task.weighted(Output(torch.zeros(2, 2), torch.zeros(2, 2)), {"inputs": torch.zeros(2, 2, 3)}, ones) == {}
