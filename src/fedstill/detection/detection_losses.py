"""The losses of a detector's predictions, separately for each matched object, so that objects can be weighted.

For every layer of the decoder, queries are matched with objects one to one (`boxes/assignment.py`). A matched query is
trained to predict the object's class and box, any other one "no object". Terms and weights are those of 3DETR:

    class    cross-entropy of all queries, those without an object counting 0.25
    centre   5 * L1 distance of centres, in units of the scene's extent
    size     1 * L1 difference of sizes, in the same units
    giou     1 * (1 - generalised IoU)
    angle    0.1 * cross-entropy of the heading's bin + 0.5 * Huber loss of the residual in it
    tokens   of tokens before the decoder: whether each lies in an object, its class, its centre

The weights are those for ScanNet, where boxes are axis-aligned. A model that predicts headings has those for SUN RGB-D:
queries without an object weigh 0.1, giou 0, and matching also uses centres and objectness. A model without angles has
an angle term of 0. Box terms are means over the matched objects of a batch, and all terms except `tokens` are summed
over layers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedstill.detection.boxes import (
    SCANNET,
    SUN_RGBD,
    MatchingWeights,
    assign_scenes,
    generalised_iou,
    lies_in,
    matching_costs,
    volumes,
)
from fedstill.detection.model import Layer, Predictions
from fedstill.tasks.classification import Weigh

TERMS = ("class", "centre", "size", "giou", "angle", "tokens")
BOX_TERMS = ("centre", "size", "giou", "angle")
_HOPELESS = 1e6  # the cost of a match with a non-finite prediction: more than any other


@dataclass(frozen=True)
class Weights:
    """The weights that differ between data with axis-aligned and with rotated boxes."""

    matching: MatchingWeights
    no_object: float  # of queries without an object, in the cross-entropy
    giou: float
    centre: float = 5.0
    size: float = 1.0
    bin: float = 0.1
    residual: float = 0.5


ALIGNED = Weights(SCANNET, no_object=0.25, giou=1.0)
TURNED = Weights(SUN_RGBD, no_object=0.1, giou=0.0)


# Of the matched objects of a layer: scene, query, object.
Pairs = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class MatchedLosses:
    """The losses of one layer of the decoder: those of matched objects individually (objects,), in order of scenes."""

    pairs: Pairs  # objects are column indices of the given labels and boxes
    labels: Tensor
    probability: Tensor  # of the true class, without a gradient
    terms: Mapping[str, Tensor]  # class and the box terms, times their weights
    others: Tensor  # the sum of the class losses of queries without an object, times their weight


@dataclass(frozen=True)
class Losses:
    """All losses of a batch as sums, with their denominators: sums over batches give means over all."""

    layers: tuple[MatchedLosses, ...]
    tokens: Mapping[str, Tensor]  # sums: over all tokens, and over those in objects
    counts: Mapping[str, Tensor]  # of queries (without an object: by their weight), objects, tokens, those in objects

    def terms(self, weigh: Weigh | None = None) -> dict[str, Tensor]:
        """The loss terms, each matched object's losses times its weight.

        `weigh` is called once for each layer of the decoder, the last one last, even if nothing was matched. Queries
        without an object, and tokens, have weight 1.
        """
        return combine(self.sums(weigh), self.counts)

    def sums(self, weigh: Weigh | None = None) -> dict[str, Tensor]:
        """The numerators of the terms, over all layers."""
        sums: dict[str, Tensor] = {}
        for layer in self.layers:
            with torch.no_grad():
                weights = None if weigh is None else weigh(layer.probability, layer.labels)
            for name, losses in layer.terms.items():
                total = (losses if weights is None else losses * weights).sum()
                total = total + layer.others if name == "class" else total
                sums[name] = sums[name] + total if name in sums else total
        return {**sums, **self.tokens}


COUNTED = {
    "class": "queries",
    **dict.fromkeys(BOX_TERMS, "objects"),
    "objectness": "tokens",
    "votes": "tokens-in-objects",
}
"""The sums that there are, and what each is divided by."""


def combine(sums: Mapping[str, Tensor], counts: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The loss terms from sums over any number of scenes; a term with denominator zero is 0."""
    means = {name: sums[name] / torch.where(counts[by] > 0, counts[by], 1.0) for name, by in COUNTED.items()}
    tokens = means.pop("objectness") + means.pop("votes")
    return {**means, "tokens": tokens}


def detection_losses(predictions: Predictions, labels: Tensor, boxes: Tensor) -> Losses:
    """Of predictions for scenes with `labels` (scenes, most objects), -1 where there is none, and `boxes` (..., 7)."""
    weights = TURNED if predictions.layers[0].bin_logits.shape[-1] else ALIGNED
    there = labels >= 0
    numbers = there.sum(dim=1).tolist()
    # Objects first, padding rows after them: the matching reads as many as there are.
    order = torch.argsort((~there).to(torch.uint8), dim=1, stable=True)
    labels, boxes = labels.gather(1, order), boxes.gather(1, order.unsqueeze(-1).expand_as(boxes))
    labels, boxes = labels[:, : max(numbers)].clamp(min=0), boxes[:, : max(numbers)]
    matches = _match(predictions, labels, boxes, numbers, weights.matching)
    layers = tuple(
        _layer(layer, pairs, labels, boxes, order, predictions.extent, weights)
        for layer, pairs in zip(predictions.layers, matches, strict=True)
    )
    tokens, inside = _tokens(predictions, labels, boxes, there.gather(1, order)[:, : max(numbers)])
    queries = predictions.layers[0].boxes.shape[:2].numel()
    objects = len(layers[0].labels)
    counts = {
        "queries": objects + weights.no_object * (queries - objects),
        "objects": objects,
        "tokens": 0 if predictions.tokens is None else predictions.tokens.objectness.numel(),
        "tokens-in-objects": inside,
    }
    like = predictions.extent
    totals = {name: torch.as_tensor(count, dtype=like.dtype, device=like.device) for name, count in counts.items()}
    return Losses(layers, tokens, totals)


def _match(
    predictions: Predictions, labels: Tensor, boxes: Tensor, numbers: Sequence[int], weights: MatchingWeights
) -> list[Pairs]:
    """The matches of every layer; the costs of all layers are computed at once."""
    said = torch.stack([layer.log_probabilities.detach()[..., :-1].exp() for layer in predictions.layers])
    found = torch.stack([layer.boxes.detach() for layer in predictions.layers])
    truth = boxes.expand(len(found), *boxes.shape)
    costs = matching_costs(
        said, found, labels.expand(len(found), *labels.shape), truth, weights, extent=predictions.extent
    )
    # A model with non-finite weights continues training, as in every other task: the metrics will show it.
    costs = costs.nan_to_num(_HOPELESS, _HOPELESS, _HOPELESS).cpu()
    every = []
    for layer in costs:
        pairs = assign_scenes(layer, numbers)
        scenes = [torch.full_like(queries, scene) for scene, (queries, _) in enumerate(pairs)]
        columns = (scenes, [queries for queries, _ in pairs], [objects for _, objects in pairs])
        scene, query, thing = (torch.cat(column).to(boxes.device) for column in columns)
        every.append((scene, query, thing))
    return every


def _layer(
    layer: Layer, pairs: Pairs, labels: Tensor, boxes: Tensor, order: Tensor, extent: Tensor, weights: Weights
) -> MatchedLosses:
    scene, query, thing = pairs
    kinds, truth = labels[scene, thing], boxes[scene, thing]
    said, found, unit = layer.log_probabilities[scene, query], layer.boxes[scene, query], extent[scene]
    nothing = -layer.log_probabilities[..., -1]
    taken = torch.zeros_like(nothing, dtype=torch.bool)
    taken[scene, query] = True
    own = said.gather(1, kinds.unsqueeze(1)).squeeze(1)
    terms = {
        "class": -own,
        "centre": weights.centre * ((found[:, :3] - truth[:, :3]).abs() / unit).sum(dim=1),
        "size": weights.size * ((found[:, 3:6] - truth[:, 3:6]).abs() / unit).sum(dim=1),
        "giou": weights.giou * (1 - generalised_iou(found, truth)),
        "angle": _angles(layer.bin_logits[scene, query], layer.bin_residuals[scene, query], truth[:, 6], weights),
    }
    others = weights.no_object * nothing.masked_fill(taken, 0.0).sum()
    return MatchedLosses((scene, query, order[scene, thing]), kinds, own.detach().exp(), terms, others)


def _angles(logits: Tensor, residuals: Tensor, headings: Tensor, weights: Weights) -> Tensor:
    """For each object (objects,): the bin of the heading, and the residual in that bin, in halves of its width."""
    bins = logits.shape[1]
    if not bins:
        return torch.zeros_like(headings)
    turns = torch.remainder(headings, 2 * math.pi) / (2 * math.pi / bins)
    nearest = turns.round()
    which = nearest.long() % bins
    told = residuals.gather(1, which.unsqueeze(1)).squeeze(1)
    wrong = F.cross_entropy(logits, which, reduction="none")
    return weights.bin * wrong + weights.residual * F.huber_loss(told, 2 * (turns - nearest), reduction="none")


def _tokens(predictions: Predictions, labels: Tensor, boxes: Tensor, there: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """Sums of token losses by denominator, and the number of tokens inside an object."""
    tokens = predictions.tokens
    if tokens is None:
        nothing = predictions.extent.new_zeros(())
        return {"objectness": nothing, "votes": nothing}, nothing
    inside, room = boxes_around(tokens.positions, boxes, there)
    sums = F.binary_cross_entropy_with_logits(tokens.objectness, inside.to(tokens.objectness), reduction="sum")
    scene, token = inside.nonzero(as_tuple=True)
    thing = room[scene, token].argmin(dim=1) if len(scene) else scene
    away = (tokens.votes[scene, token] - boxes[scene, thing, :3]).abs().sum()
    wrong = F.nll_loss(tokens.log_probabilities[scene, token], labels[scene, thing], reduction="sum")
    return {"objectness": sums, "votes": away + wrong}, inside.sum()


@torch.no_grad()
def boxes_around(positions: Tensor, boxes: Tensor, there: Tensor) -> tuple[Tensor, Tensor]:
    """Which positions (scenes, positions, 3) are inside any box that is `there`, and the volumes of those boxes.

    Volumes are (scenes, positions, boxes), infinite for boxes that do not contain the position. If objects overlap,
    such as a chair under a table, a position belongs to the smaller one.
    """
    within = lies_in(positions, boxes) & there.unsqueeze(1)
    return within.any(dim=2), volumes(boxes).unsqueeze(1).masked_fill(~within, math.inf)
