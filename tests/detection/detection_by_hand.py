"""What a detector learns by, written out from its description: the detection loss, AdamW, clipping, the rate.

Nothing of the package's own loss, optimisers or training is used here. What is, since it is tested elsewhere: what a
detector says of a batch, the cost of matching a query with an object, and the generalised IoU of two boxes.

Also a detector small enough to train in milliseconds, in double precision: two ways to add up the same numbers then
differ by nothing that counts. In single precision Adam makes steps of full length of what is nothing but rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from fedstill.core.dataset import ArrayDataset, Batch
from fedstill.core.kinds import load_state
from fedstill.core.streams import Streams
from fedstill.core.task import Tensors
from fedstill.detection.boxes import MatchingWeights, generalised_iou, matching_costs
from fedstill.detection.detection_task import Detected, Detection
from fedstill.detection.model import Layer, Predictions, TokenPredictions
from fedstill.detection.rooms import CLASSES, make_rooms
from fedstill.detection.scene_augmentation import SceneAugmentation
from fedstill.models import build_model, duplicate

POINTS = 256
HEADINGS = ("right-angled", "free")
SMALL = {"width": 16, "heads": 2, "feedforward": 16, "tokens": 24, "neighbours": 8, "candidates": 16, "prompts": 3}
SIZES = {
    "tiny": {**SMALL, "decoder_layers": 2, "queries": 9},
    "larger": {**SMALL, "width": 20, "decoder_layers": 1, "queries": 12},
}


@dataclass(frozen=True)
class Exact(Detection):
    """Detection with tiny detectors, in double precision."""

    bins: int = 1  # of headings; 1: it tells none

    def build(self, architecture: str, state: Tensors | None = None, streams: Streams | None = None) -> nn.Module:
        if state is None:
            with (streams or Streams(0)).ambient("initialise"):
                return exact_detector(architecture, self.bins)
        model = duplicate(_template(architecture, self.bins))
        load_state(model, state)
        return model

    def forward(self, model: nn.Module, batch: Batch) -> Detected:
        return super().forward(model, doubled(batch))


def exact_detector(architecture: str, bins: int) -> nn.Module:
    sizes = {**SIZES[architecture], "angle_bins": bins}
    return build_model("small-detr3d-lite", (POINTS, 3), len(CLASSES), **sizes).double()


@cache
def _template(architecture: str, bins: int) -> nn.Module:
    return exact_detector(architecture, bins)


def doubled(batch: Batch) -> Batch:
    return {name: column.double() if column.is_floating_point() else column for name, column in batch.items()}


@cache
def rooms(number: int, first: int, headings: Any) -> ArrayDataset:
    """Scenes with boxes, axis-aligned or turned."""
    made = make_rooms(number, points=POINTS, first=first, seen=4, headings=headings)
    columns = (torch.as_tensor(column) for column in (made.points, made.classes, made.boxes))
    return ArrayDataset(**dict(zip(("inputs", "labels", "boxes"), columns, strict=True)))


def task_for(headings: str) -> Exact:
    """With a detector that tells headings where boxes have some; scenes are augmented."""
    bins = 1 if headings == "right-angled" else 4
    return Exact(CLASSES, (POINTS, 3), ("tiny",), augmentation=SceneAugmentation(), bins=bins)


@dataclass(frozen=True)
class Data:
    """What is asked of detectors for axis-aligned boxes (ScanNet), and of those that tell headings (SUN RGB-D)."""

    matching: MatchingWeights
    empty: float  # of a query without an object
    giou: float


SCANNET = Data(MatchingWeights(class_probability=1, generalised_iou=2, centre=0, objectness=0), empty=0.25, giou=1)
SUN_RGBD = Data(MatchingWeights(class_probability=1, generalised_iou=3, centre=5, objectness=5), empty=0.1, giou=0)


def data_of(said: Predictions) -> Data:
    return SUN_RGBD if said.layers[0].bin_logits.shape[-1] > 0 else SCANNET


Pairs = list[tuple[int, int, int]]  # scene, query and object, matched one to one


@dataclass(frozen=True)
class Costs:
    """Of one layer of the decoder, in a batch: losses of matched objects (objects,), and what is left."""

    pairs: Pairs
    kinds: Tensor
    own: Tensor  # log-probabilities of the true classes
    boxes: Tensor
    empty: Tensor  # minus the log-probability of "no object", summed over all other queries
    others: int  # how many these are


# What the loss of each matched object's class weighs, and what that of its box does.
Weigh = Callable[[Costs], tuple[Tensor, Tensor]]


def pairs_of(layer: Layer, extent: Tensor, labels: Tensor, truth: Tensor, data: Data) -> Pairs:
    """Who answers for what, scene by scene, each of which has the objects whose label is not -1."""
    pairs: Pairs = []
    for scene, kinds in enumerate(labels):
        there = [thing for thing, kind in enumerate(kinds.tolist()) if kind >= 0]
        price = matching_costs(
            layer.log_probabilities[scene, :, :-1].detach().exp(),
            layer.boxes[scene].detach(),
            kinds[there],
            truth[scene, there],
            data.matching,
            extent=extent[scene],
        )
        matched = zip(*(side.tolist() for side in linear_sum_assignment(price.numpy())), strict=True)
        pairs += [(scene, query, there[place]) for query, place in matched]
    return pairs


def costs_of(layer: Layer, extent: Tensor, labels: Tensor, truth: Tensor, data: Data, pairs: Pairs) -> Costs:
    """What a layer's answers cost, given who answers for what."""
    scenes, queries, things = (list(side) for side in zip(*pairs, strict=True)) if pairs else ([], [], [])
    kinds = labels[scenes, things]
    free = torch.ones(layer.log_probabilities.shape[:2], dtype=torch.bool)
    free[scenes, queries] = False
    return Costs(
        pairs,
        kinds,
        layer.log_probabilities[scenes, queries, kinds],
        box_costs(layer, scenes, queries, truth[scenes, things], extent[scenes], data),
        -layer.log_probabilities[..., -1][free].sum(),
        int(free.sum()),
    )


def box_costs(
    layer: Layer, scenes: Sequence[int], queries: Sequence[int], truth: Tensor, extent: Tensor, data: Data
) -> Tensor:
    """5 times the L1 distance of centres and 1 times that of sizes, in units of the scene; gIoU; headings."""
    found = layer.boxes[scenes, queries]
    centre = ((found[:, :3] - truth[:, :3]) / extent).abs().sum(dim=1)
    size = ((found[:, 3:6] - truth[:, 3:6]) / extent).abs().sum(dim=1)
    cost = 5 * centre + size + data.giou * (1 - generalised_iou(found, truth))
    bins = layer.bin_logits.shape[-1]
    if not bins:
        return cost
    width = 2 * math.pi / bins
    angles = []
    for scene, query, heading in zip(scenes, queries, truth[:, 6].tolist(), strict=True):
        # Bin k is around k widths; the residual is from its middle, in halves of its width.
        away = [math.remainder(heading - k * width, 2 * math.pi) for k in range(bins)]
        nearest = min(range(bins), key=lambda k: abs(away[k]))
        off = (layer.bin_residuals[scene, query, nearest] - away[nearest] / (width / 2)).abs()
        huber = off**2 / 2 if off < 1 else off - 0.5
        logits = layer.bin_logits[scene, query]
        angles.append(0.1 * (logits.logsumexp(dim=0) - logits[nearest]) + 0.5 * huber)
    return cost + torch.stack(angles) if angles else cost


def token_cost(tokens: TokenPredictions, labels: Tensor, truth: Tensor) -> Tensor:
    """Does a token lie in an object, mean over tokens; and of those that do, where is its centre, and what is it?"""
    inside, votes = torch.zeros_like(tokens.objectness), []
    for scene, (kinds, boxes) in enumerate(zip(labels.tolist(), truth.tolist(), strict=True)):
        there = [thing for thing, kind in enumerate(kinds) if kind >= 0]
        for token, place in enumerate(tokens.positions[scene].tolist()):
            around = [thing for thing in there if holds(boxes[thing], place)]
            if not around:
                continue
            inside[scene, token] = 1
            own = min((math.prod(boxes[thing][3:6]), thing) for thing in around)[1]  # of several, the smallest
            away = (tokens.votes[scene, token] - truth[scene, own, :3]).abs().sum()
            votes.append(away - tokens.log_probabilities[scene, token, kinds[own]])
    mean = F.softplus((1 - 2 * inside) * tokens.objectness).mean()
    return mean + torch.stack(votes).mean() if votes else mean


def holds(box: Sequence[float], place: Sequence[float]) -> bool:
    x, y, z = (there - centre for there, centre in zip(place, box[:3], strict=True))
    cosine, sine = math.cos(box[6]), math.sin(box[6])
    along = abs(cosine * x + sine * y), abs(cosine * y - sine * x), abs(z)
    return all(2 * far <= size for far, size in zip(along, box[3:6], strict=True))


def alike(costs: Costs) -> tuple[Tensor, Tensor]:
    return torch.ones_like(costs.own), torch.ones_like(costs.own)


def loss_of(said: Predictions, labels: Tensor, truth: Tensor, weigh: Weigh = alike, own: bool = True) -> Tensor:
    """Class and boxes in every layer of the decoder, and tokens; `weigh` is asked layer by layer.

    Each layer has matches of its `own`; that all have those of the last would be a mistake.
    """
    data = data_of(said)
    total = token_cost(said.tokens, labels, truth)
    matches = [pairs_of(layer, said.extent, labels, truth, data) for layer in said.layers]
    for layer, pairs in zip(said.layers, matches, strict=True):
        costs = costs_of(layer, said.extent, labels, truth, data, pairs if own else matches[-1])
        objects = len(costs.kinds)
        by_class, by_box = weigh(costs)
        classes = -(by_class * costs.own).sum() + data.empty * costs.empty
        total = total + classes / (objects + data.empty * costs.others)
        total = total + (by_box * costs.boxes).sum() / max(objects, 1)
    return total


@dataclass(frozen=True)
class Pace:
    """How steps are taken. Whatever is not as usual is a mistake that a test makes on purpose."""

    rate: float
    slow: float  # factor of the rate for tokens and encoder
    decay: float
    clip: float
    warmup: int  # rounds
    cosine: bool = True
    clipped: str = "norm"  # of all that learns; `apart`: of encoder and rest for themselves; `values`; `never`
    decoupled: bool = True
    corrected: bool = True

    def rate_in(self, round: int, rounds: int) -> float:
        rise = min(1.0, (round + 1) / (self.warmup + 1))
        return self.rate * rise * ((1 + math.cos(math.pi * round / rounds)) / 2 if self.cosine else 1.0)


PACE = Pace(rate=2e-3, slow=0.5, decay=0.05, clip=0.1, warmup=1)
SAME_PACE = {  # in the words of a run's settings
    "batch": 2,
    "optimiser": "adamw",
    "rate": PACE.rate,
    "encoder_rate": PACE.slow,
    "weight_decay": PACE.decay,
    "clip": PACE.clip,
    "schedule": "cosine",
    "warmup": PACE.warmup,
}


def is_slow(name: str) -> bool:
    return name.startswith(("tokens.", "encoder."))


class AdamW:
    """AdamW with betas 0.9 and 0.999 and epsilon 1e-8, after Loshchilov and Hutter, algorithm 2.

    All weights are one long row, and so are their slopes.
    """

    def __init__(self, pace: Pace) -> None:
        self.pace, self.steps = pace, 0
        self.first = self.second = torch.zeros(())

    @torch.no_grad()
    def step(self, weights: Mapping[str, Tensor], slopes: Sequence[Tensor], rate: float) -> None:
        """Move these weights, each along its slope."""
        pace, slow = self.pace, torch.cat([torch.full((one.numel(),), is_slow(name)) for name, one in weights.items()])
        row = torch.cat([one.flatten() for one in weights.values()])
        slope = clipped(torch.cat([one.flatten() for one in slopes]), slow, pace)
        slope = slope if pace.decoupled else slope + pace.decay * row
        self.steps += 1
        self.first = first = 0.9 * self.first + 0.1 * slope
        self.second = second = 0.999 * self.second + 0.001 * slope**2
        if pace.corrected:
            first, second = first / (1 - 0.9**self.steps), second / (1 - 0.999**self.steps)
        rates = rate * torch.where(slow, row.new_tensor(pace.slow), row.new_tensor(1.0))
        row = row * (1 - rates * pace.decay) if pace.decoupled else row
        row = row - rates * first / (second.sqrt() + 1e-8)
        for one, moved in zip(weights.values(), row.split([one.numel() for one in weights.values()]), strict=True):
            one.copy_(moved.view_as(one))


def clipped(slope: Tensor, slow: Tensor, pace: Pace) -> Tensor:
    """No longer than `clip`; torch adds 1e-6 to a length before it divides by it."""
    if pace.clipped == "values":
        return slope.clamp(-pace.clip, pace.clip)
    if pace.clipped == "apart":
        return torch.where(slow, shortened(slope * slow, pace.clip), shortened(slope * ~slow, pace.clip))
    return slope if pace.clipped == "never" else shortened(slope, pace.clip)


def shortened(slope: Tensor, most: float) -> Tensor:
    return slope * min(1.0, most / (slope.norm().item() + 1e-6))
