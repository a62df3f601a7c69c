from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, confusion_matrix, log_loss, recall_score
from torch import Tensor, nn

import fedstill
from fedstill.core.dataset import ArrayDataset, Subset
from fedstill.core.errors import InputError
from fedstill.core.kinds import state_of
from fedstill.core.streams import Streams
from fedstill.tasks.classification import Classification, metrics_from

TASK = Classification(("a", "b", "c", "d"), (4,), ("mlp",))


class Echo(nn.Module):
    """Reads its log-probabilities off the inputs, so that a test decides every output."""

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        return F.log_softmax(inputs, dim=1), inputs


def said(logits: list[list[float]] | Tensor, labels: list[int] | Tensor) -> ArrayDataset:
    return ArrayDataset(inputs=torch.as_tensor(logits).float(), labels=torch.as_tensor(labels))


def random_answers(samples: int, seed: int, classes: tuple[int, ...] = (0, 1, 2, 3)) -> ArrayDataset:
    generator = np.random.default_rng(seed)
    return said(
        torch.from_numpy(generator.standard_normal((samples, 4)) * 2),
        torch.from_numpy(generator.choice(classes, samples)),
    )


@pytest.mark.parametrize("classes", [(0, 1, 2, 3), (0, 2), (3,)], ids=["all", "two of four", "one"])
@pytest.mark.parametrize("samples", [1, 40, 600])  # 600 is more than one evaluation batch
def test_metrics_against_scikit_learn(samples: int, classes: tuple[int, ...]) -> None:
    data = random_answers(samples, seed=samples, classes=classes)
    scores = TASK.score([Echo()], data)
    metrics = TASK.summarise(scores)
    truth = data.labels().numpy()
    inputs = data.columns["inputs"].double()
    guesses = inputs.argmax(dim=1).numpy()
    present = np.unique(truth)
    assert (scores["confusion"].numpy() == confusion_matrix(truth, guesses, labels=range(4))).all()
    assert metrics["accuracy"] == pytest.approx(accuracy_score(truth, guesses), abs=1e-12)
    expected = recall_score(truth, guesses, labels=present, average="macro", zero_division=0)
    assert metrics["class_accuracy"] == pytest.approx(expected, abs=1e-12)
    assert metrics["loss"] == pytest.approx(log_loss(truth, inputs.softmax(dim=1), labels=range(4)), rel=1e-5)
    assert metrics["constant"] == pytest.approx(np.bincount(guesses).max() / samples)
    assert metrics["non_finite"] == 0


def test_metrics_by_hand() -> None:
    """Truth 0 0 0 1; said 0 0 1 1: accuracy 3/4, recall 2/3 and 1, class accuracy 5/6; half say 0, half say 1.

    Every answer is certain to 20 nats, so that only the wrong one costs: 20 / 4 = 5 (and 3 e^-20 more).
    """
    yes_0, yes_1 = [20.0, 0, 0, 0], [0, 20.0, 0, 0]
    metrics = TASK.summarise(TASK.score([Echo()], said([yes_0, yes_0, yes_1, yes_1], [0, 0, 0, 1])))
    assert metrics["accuracy"] == 0.75
    assert metrics["class_accuracy"] == pytest.approx(5 / 6)
    assert metrics["constant"] == 0.5
    assert metrics["loss"] == pytest.approx(5, abs=1e-6)
    assert metrics["mse"] == pytest.approx(2 / 16), "the wrong one is wrong by one in two of four classes"


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_outputs_that_are_not_numbers_are_counted(bad: float) -> None:
    """One of four samples is broken: it stands in the matrix as class 0 (wrong here), and its share is 1/4."""
    good = [0.0, 9, 0, 0]
    broken = [bad, bad, bad, bad]
    scores = TASK.score([Echo()], said([good, good, good, broken], [1, 1, 1, 1]))
    assert scores["confusion"].sum() == 4
    assert scores["confusion"][1].tolist() == [1, 3, 0, 0]
    assert scores["non-finite"].item() == 1
    metrics = TASK.summarise(scores)
    assert metrics["accuracy"] == 0.75
    assert metrics["non_finite"] == 0.25


def test_a_single_nan_among_the_classes_breaks_the_answer() -> None:
    class Raw(nn.Module):
        def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
            return inputs, inputs

    scores = TASK.score([Raw()], said([[9.0, 0, 0, float("nan")]], [0]))
    assert scores["non-finite"].item() == 1


@given(st.integers(2, 60), st.integers(0, 50), st.integers(1, 59))
@settings(deadline=None, max_examples=30)
def test_the_scores_of_two_sites_add_up_to_those_of_both(samples: int, seed: int, cut: int) -> None:
    data = random_answers(samples, seed)
    rows = torch.arange(samples)
    whole = TASK.sums(TASK.score([Echo()], data))
    pieces = [TASK.sums(TASK.score([Echo()], Subset(data, part))) for part in (rows[:cut], rows[cut:])]
    summed = {name: pieces[0][name] + pieces[1][name] for name in whole}
    assert torch.equal(summed["confusion"], whole["confusion"])
    assert torch.equal(summed["non-finite"], whole["non-finite"])
    assert summed["loss"].item() == pytest.approx(whole["loss"].item(), rel=1e-5)
    left, right = TASK.summarise(summed), TASK.summarise(whole)
    assert all(left[name] == right[name] for name in ("accuracy", "class_accuracy", "constant", "non_finite"))


def test_the_scores_of_several_models_add_up() -> None:
    data = random_answers(30, seed=1)
    one, two = TASK.score([Echo()], data), TASK.score([Echo(), Echo()], data)
    assert torch.equal(two["confusion"], 2 * one["confusion"])
    assert two["loss"].item() == pytest.approx(2 * one["loss"].item())


def test_the_loss_is_the_mean_cross_entropy() -> None:
    """-log softmax of (ln 3, 0, 0, 0) at class 0 is ln 2, at class 1 it is ln 6; their mean is ln(12) / 2."""
    row = [float(np.log(3)), 0, 0, 0]
    output = TASK.forward(Echo(), said([row, row], [0, 1]).batch(torch.arange(2)))
    assert list(output.terms) == list(TASK.terms) == ["cross-entropy"]
    assert output.terms["cross-entropy"].item() == pytest.approx(np.log(12) / 2, rel=1e-6)
    torch.testing.assert_close(output.log_probabilities.exp()[0], torch.tensor([0.5, 1 / 6, 1 / 6, 1 / 6]))


def test_without_labels_there_are_no_terms() -> None:
    batch = random_answers(3, seed=0).unlabelled().batch(torch.arange(3))
    output = TASK.forward(Echo(), batch)
    assert output.terms == {}
    assert output.log_probabilities.shape == (3, 4)


def test_predictions_are_probabilities_and_leave_no_trace() -> None:
    images = Classification(tuple("0123456789"), (1, 8, 8), ("cnn-bn",))
    model = images.build("cnn-bn", streams=Streams(0)).train()
    before = state_of(model)
    inputs = torch.randn(7, 1, 8, 8)
    probabilities = images.predict(model, inputs)
    torch.testing.assert_close(probabilities.sum(dim=1), torch.ones(7))
    assert (probabilities >= 0).all()
    assert torch.equal(images.predict(model, inputs), probabilities)
    assert not probabilities.requires_grad
    assert all(torch.equal(before[name], tensor) for name, tensor in state_of(model).items())


def test_scoring_does_not_train_batchnorm_or_draw() -> None:
    images = Classification(("x", "y"), (1, 8, 8), ("cnn-bn",))
    model = images.build("cnn-bn", streams=Streams(0)).train()
    data = ArrayDataset(inputs=torch.randn(5, 1, 8, 8), labels=torch.tensor([0, 1, 0, 1, 1]))
    before, generator = state_of(model), torch.default_generator.get_state()
    scores = [images.score([model], data) for _ in range(2)]
    assert scores[0]["loss"].item() == scores[1]["loss"].item()
    assert all(torch.equal(before[name], tensor) for name, tensor in state_of(model).items())
    assert torch.equal(torch.default_generator.get_state(), generator)


def test_a_model_is_built_from_its_stream_or_its_state_alone() -> None:
    def bits(model: nn.Module) -> Tensor:
        return torch.cat([tensor.flatten() for tensor in model.state_dict().values()])

    torch.manual_seed(0)
    before = torch.default_generator.get_state()
    one = TASK.build("mlp", streams=Streams(1))
    assert torch.equal(torch.default_generator.get_state(), before)
    torch.manual_seed(1)
    assert torch.equal(bits(TASK.build("mlp", streams=Streams(1))), bits(one))
    assert not torch.equal(bits(TASK.build("mlp", streams=Streams(2))), bits(one))
    assert torch.equal(bits(TASK.build("mlp", state_of(one), Streams(2))), bits(one))


def test_metrics_of_a_model_that_says_one_thing() -> None:
    confusion = torch.tensor([[0, 3, 0], [0, 1, 0], [0, 0, 0]])
    scores = {"confusion": confusion, "loss": torch.tensor(8.0), "non-finite": torch.tensor(0)}
    metrics = metrics_from(scores)
    expected = {"accuracy": 0.25, "class_accuracy": 0.5, "loss": 2.0, "constant": 1.0, "non_finite": 0.0}
    assert metrics == expected


def test_class_weights_by_hand() -> None:
    """-log p of two samples, weighed 3 to 1 and divided by the sum of weights; evaluation stays as it is."""
    task = Classification(("a", "b"), (2,), ("mlp",), class_weights=(3.0, 1.0))
    logits = torch.tensor([[0.0, 1.0], [2.0, 0.5]])
    batch = {"inputs": logits, "labels": torch.tensor([0, 1])}
    model = Echo()
    losses = -logits.log_softmax(dim=1)[[0, 1], [0, 1]]
    found = task.forward(model.train(), batch)
    torch.testing.assert_close(found.terms["cross-entropy"], (3 * losses[0] + losses[1]) / 4)
    torch.testing.assert_close(task.forward(model.eval(), batch).terms["cross-entropy"], losses.mean())
    doubled = task.weighted(found, batch, lambda probability, labels: torch.full_like(probability, 2.0))
    torch.testing.assert_close(doubled["cross-entropy"], 2 * (3 * losses[0] + losses[1]) / 4)


def test_balanced_weights_are_those_of_the_data_that_is_trained_on() -> None:
    task = Classification(("a", "b", "c"), (2,), ("mlp",), class_weights="balanced")
    data = ArrayDataset(inputs=torch.zeros(4, 2), labels=torch.tensor([0, 0, 0, 1]))
    assert task.trained_on(data).class_weights == (4 / (2 * 3), 4 / 2, 0.0)
    assert task.trained_on(data.unlabelled()) is task
    plain = Classification(("a", "b", "c"), (2,), ("mlp",))
    assert plain.trained_on(data) is plain


def test_class_weights_change_training_and_their_identity(tmp_path: Path) -> None:
    """A client with nine times as many zeros: with balanced weights the rare class is found more often."""
    draw = np.random.default_rng(0)
    labels = np.r_[np.zeros(180, dtype=np.int64), np.ones(20, dtype=np.int64)]
    inputs = (draw.normal(size=(200, 6)) + 0.7 * labels[:, None]).astype(np.float32)
    data = {"train": (inputs, labels), "test": (inputs, labels)}
    common = {"data": data, "model": "mlp:width=8", "rounds": 4, "clients": 2, "out": tmp_path, "rate": 0.02}
    plain = fedstill.run("fedavg", **common)
    balanced, listed = (fedstill.run("fedavg", class_weights=one, **common) for one in ("balanced", [0.5, 0.5]))
    assert len({plain.path, balanced.path, listed.path}) == 3
    assert balanced.result.class_accuracy["last"] > plain.result.class_accuracy["last"] + 0.05
    equal = [state_of(one.model()) for one in (plain, listed)]
    assert all(torch.allclose(equal[0][name], equal[1][name], atol=1e-5) for name in equal[0])


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"class_weights": [1, 2]}, "training.class_weights has 2 numbers, and there are 10 classes"),
        ({"class_weights": [0] * 10}, "give one number for each, not all zero"),
        ({"class_weights": "even"}, "class_weights"),
        ({"class_weights": [-1.0] * 10}, "class_weights"),
    ],
)
def test_wrong_class_weights_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        fedstill.egress("fedavg", data="digits", model="mlp", **settings)
