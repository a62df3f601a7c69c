"""Matching against all permutations, costs by hand, scenes with any number of objects."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
import torch

from fedstill.core.errors import RunError
from fedstill.detection.boxes import SCANNET, SUN_RGBD, MatchingWeights, assign, assign_scenes, matching_costs
from fedstill.detection.boxes.iou import generalised_iou


@pytest.mark.parametrize(("predictions", "objects"), [(5, 5), (6, 3), (3, 6), (4, 1), (1, 1)])
def test_against_all_permutations(predictions: int, objects: int) -> None:
    for seed in range(10):
        costs = torch.randn(predictions, objects, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        rows, columns = assign(costs)
        wide = costs if predictions <= objects else costs.T
        least = min(
            sum(float(wide[row, column]) for row, column in enumerate(chosen))
            for chosen in permutations(range(wide.shape[1]), wide.shape[0])
        )
        assert len(rows) == len(set(rows.tolist())) == len(set(columns.tolist())) == min(predictions, objects)
        assert float(costs[rows, columns].sum()) == pytest.approx(least, abs=1e-12)
        assert rows.tolist() == sorted(rows.tolist())


def test_costs_by_hand() -> None:
    """One prediction a metre off in x and 0.5 in z, in a room of 4 x 5 x 2: 1/4 + 0.5/2 of its extent."""
    boxes = torch.tensor([[1.0, 0, 0.5, 1, 1, 1, 0]])
    truth = torch.tensor([[0.0, 0, 0, 1, 1, 1, 0], [1.0, 0, 0.5, 1, 1, 1, 0]])
    probabilities = torch.tensor([[0.1, 0.2, 0.6]])
    labels = torch.tensor([2, 0])
    giou = float(generalised_iou(boxes[0], truth[0]))
    costs = matching_costs(probabilities, boxes, labels, truth)
    assert costs.tolist() == [pytest.approx([-0.6 - 2 * giou, -0.1 - 2 * 1.0])]
    room = torch.tensor([4.0, 5.0, 2.0])
    costs = matching_costs(probabilities, boxes, labels, truth, SUN_RGBD, extent=room)
    expected = [-0.6 - 3 * giou + 5 * 0.5 - 5 * 0.9, -0.1 - 3 * 1.0 - 5 * 0.9]
    assert costs.tolist() == [pytest.approx(expected)]
    certain = matching_costs(probabilities, boxes, labels, truth, SUN_RGBD, objectness=torch.tensor([0.4]))
    expected = [-0.6 - 3 * giou + 5 * 1.5 - 5 * 0.4, -0.1 - 3 * 1.0 - 5 * 0.4]
    assert certain.tolist() == [pytest.approx(expected)]


def test_the_weights_of_the_two_data_sets() -> None:
    assert list(SCANNET.model_dump().values()) == [1, 2, 0, 0]
    assert list(SUN_RGBD.model_dump().values()) == [1, 3, 5, 5]


def test_good_predictions_find_their_objects(draw: Any) -> None:
    truth = draw(7, 60, spread=4.0)
    order = torch.tensor([4, 0, 6, 2, 1, 5, 3])
    boxes = torch.cat([draw(5, 61, spread=4.0), truth[order] + 0.02])
    labels = torch.arange(7) % 3
    rows, columns = assign(matching_costs(torch.full((12, 3), 1 / 3), boxes, labels, truth, SUN_RGBD))
    assert rows.tolist() == list(range(5, 12))
    assert columns.tolist() == order.tolist()


def test_scenes_with_any_number_of_objects(draw: Any) -> None:
    boxes, truth = draw(30, 62).view(3, 10, 7), draw(12, 63).view(3, 4, 7)
    probabilities = torch.rand(3, 10, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    labels = torch.tensor([[0, 4, 1, 2], [3, 0, 0, 0], [0, 0, 0, 0]])
    costs = matching_costs(probabilities, boxes, labels, truth, SUN_RGBD)
    costs[1, :, 1:] = torch.nan  # what is padding may be anything
    found = assign_scenes(costs, [4, 1, 0])
    assert [len(rows) for rows, _ in found] == [4, 1, 0]
    alone = assign(matching_costs(probabilities[0], boxes[0], labels[0], truth[0], SUN_RGBD))
    assert all(torch.equal(one, two) for one, two in zip(found[0], alone, strict=True))
    assert found[2][0].dtype == torch.int64
    assert assign(torch.zeros(0, 3))[0].tolist() == []


def test_no_objects_at_all(draw: Any) -> None:
    costs = matching_costs(torch.rand(4, 3), draw(4, 64).float(), torch.zeros(0, dtype=torch.int64), torch.zeros(0, 7))
    assert costs.shape == (4, 0)
    assert [part.tolist() for part in assign(costs)] == [[], []]


def test_costs_have_no_gradient(draw: Any) -> None:
    boxes = draw(4, 65).requires_grad_()
    costs = matching_costs(torch.ones(4, 2).double().requires_grad_(), boxes, torch.tensor([1]), draw(1, 66))
    assert not costs.requires_grad


@pytest.mark.parametrize("value", [torch.nan, torch.inf], ids=["nan", "inf"])
def test_costs_that_are_no_numbers(value: float) -> None:
    costs = torch.zeros(3, 2)
    costs[2, 1] = value
    with pytest.raises(RunError, match=r"the cost of matching prediction 2 with object 1 is (nan|inf): the model"):
        assign(costs)


def test_a_weight_of_nothing_leaves_the_reason_out() -> None:
    """Boxes that are no numbers do not matter where only classes do."""
    only_class = MatchingWeights(class_probability=1, generalised_iou=0)
    costs = matching_costs(
        torch.eye(2), torch.full((2, 7), torch.nan), torch.tensor([1]), torch.zeros(1, 7), only_class
    )
    assert costs.tolist() == [[0.0], [-1.0]]
