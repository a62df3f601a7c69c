"""Bipartite matching of predictions and objects: the one-to-one assignment of least cost.

    cost = - class * p(the object's class) - giou * gIoU + centre * |difference of centres|_1 - objectness * p(object)

as in *An End-to-End Transformer Model for 3D Object Detection*, Misra et al., 2021, https://arxiv.org/abs/2109.08141.
Remaining predictions are unmatched; so are remaining objects in a scene with more objects than predictions.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor

from fedstill.core.errors import RunError
from fedstill.core.settings import Settings
from fedstill.detection.boxes.iou import pairwise_generalised_iou


class MatchingWeights(Settings):
    """The weights of the matching costs; the defaults are those for ScanNet."""

    class_probability: float = Field(1.0, ge=0, description="weight of the probability of the object's class")
    generalised_iou: float = Field(2.0, ge=0, description="weight of the generalised intersection over union")
    centre: float = Field(0.0, ge=0, description="weight of the distance between centres, summed over the axes")
    objectness: float = Field(0.0, ge=0, description="weight of the probability of there being any object")


SCANNET = MatchingWeights()
SUN_RGBD = MatchingWeights(class_probability=1.0, generalised_iou=3.0, centre=5.0, objectness=5.0)

# For each matched object: the prediction, and the object.
Matches = tuple[Tensor, Tensor]


@torch.no_grad()
def matching_costs(
    probabilities: Tensor,
    boxes: Tensor,
    labels: Tensor,
    truth: Tensor,
    weights: MatchingWeights = SCANNET,
    *,
    objectness: Tensor | None = None,
    extent: Tensor | None = None,
) -> Tensor:
    """The cost of each match, (..., predictions, objects).

    `probabilities` (..., predictions, classes) and `boxes` (..., predictions, 7) are predictions, `labels` (...,
    objects) and `truth` (..., objects, 7) the ground truth; leading dimensions are scenes. `objectness` (...,
    predictions) defaults to the sum over all classes, which assumes that "no object" is none of them. Centres are
    compared in units of `extent` (..., 3), the size of the scene, or in metres without it.
    """
    index = labels[..., None, :].expand(*probabilities.shape[:-1], labels.shape[-1])
    costs = -weights.class_probability * probabilities.gather(-1, index)
    if weights.generalised_iou:
        costs = costs - weights.generalised_iou * pairwise_generalised_iou(boxes, truth)
    if weights.centre:
        away = (boxes[..., :, None, :3] - truth[..., None, :, :3]).abs()
        unit = away if extent is None else away / extent[..., None, None, :]
        costs = costs + weights.centre * unit.sum(dim=-1)
    if weights.objectness:
        certain = probabilities.sum(dim=-1) if objectness is None else objectness
        costs = costs - weights.objectness * certain[..., None]
    return costs


def assign(costs: Tensor) -> Matches:
    """The one-to-one matches of least total cost, from (predictions, objects); ordered by prediction.

    >>> [part.tolist() for part in assign(torch.tensor([[1.0, 2.0], [0.0, 5.0], [9.0, 9.0]]))]
    [[0, 1], [1, 0]]
    """
    from scipy.optimize import linear_sum_assignment  # type: ignore[import-untyped]  # slow to import

    if not costs.isfinite().all():
        row, column = (int(place) for place in (~costs.isfinite()).nonzero()[0])
        raise RunError(
            f"the cost of matching prediction {row} with object {column} is {float(costs[row, column])}: "
            "the model predicts values that are not finite"
        )
    rows, columns = linear_sum_assignment(costs.detach().cpu().double().numpy())
    return torch.from_numpy(rows).to(costs.device), torch.from_numpy(columns).to(costs.device)


def assign_scenes(costs: Tensor, counts: Sequence[int] | Tensor) -> list[Matches]:
    """Matches in each of several scenes, from (scenes, predictions, objects), of which the first `counts` are real."""
    return [assign(scene[:, : int(count)]) for scene, count in zip(costs, counts, strict=True)]
