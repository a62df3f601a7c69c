"""Weights for what is labelled, in the tasks that label samples and points."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedstill.core.task import Output
from fedstill.tasks.classification import Classification
from fedstill.tasks.segmentation import Segmentation


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
