"""What a detector learns by, written out from its description: the detection loss, AdamW, clipping, the rate.

Nothing of the package's own loss, optimisers or training is used here. What is, since it is tested elsewhere: what a
detector says of a batch, the cost of matching a query with an object, and the generalised IoU of two boxes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from fedstill.models.detector import Layer, Predictions, TokenPredictions
from fedstill.tasks.boxes import MatchingWeights, generalised_iou, matching_costs

# Of matched objects: their classes and the probabilities that are given to these; what the loss of each one's class
# weighs, and what that of its box does.
Weigh = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


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


@dataclass(frozen=True)
class Costs:
    """Of one layer of the decoder, in a batch: losses of matched objects (objects,), and what is left."""

    pairs: list[tuple[int, int, int]]  # scene, query and object
    kinds: Tensor
    own: Tensor  # log-probabilities of the true classes
    boxes: Tensor
    empty: Tensor  # minus the log-probability of "no object", summed over all other queries
    others: int  # how many these are


def costs_of(layer: Layer, extent: Tensor, labels: Tensor, truth: Tensor, data: Data) -> Costs:
    """Scene by scene, each of which has the objects whose label is not -1."""
    pairs = []
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
        pairs += [(scene, query, there[at]) for query, at in zip(*linear_sum_assignment(price.numpy()), strict=True)]
    scenes, queries, things = (list(side) for side in zip(*pairs, strict=True)) if pairs else ([], [], [])
    kinds = labels[scenes, things]
    free = torch.ones(layer.log_probabilities.shape[:2], dtype=torch.bool)
    free[scenes, queries] = False
    return Costs(
        [(int(scene), int(query), int(thing)) for scene, query, thing in pairs],
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


def alike(kinds: Tensor, probabilities: Tensor) -> tuple[Tensor, Tensor]:
    return torch.ones_like(probabilities), torch.ones_like(probabilities)


def loss_of(said: Predictions, labels: Tensor, truth: Tensor, weigh: Weigh = alike) -> Tensor:
    """Class and boxes in every layer of the decoder, and tokens; `weigh` is asked layer by layer."""
    data = data_of(said)
    total = token_cost(said.tokens, labels, truth)
    for layer in said.layers:
        costs = costs_of(layer, said.extent, labels, truth, data)
        objects = len(costs.kinds)
        by_class, by_box = weigh(costs.kinds, costs.own.exp())
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


def is_slow(name: str) -> bool:
    return name.startswith(("tokens.", "encoder."))


@dataclass
class AdamW:
    """AdamW with betas 0.9 and 0.999 and epsilon 1e-8, after Loshchilov and Hutter, algorithm 2."""

    pace: Pace

    def __post_init__(self) -> None:
        self.first: dict[str, Tensor] = {}
        self.second: dict[str, Tensor] = {}
        self.steps: dict[str, int] = {}

    def step(self, weights: Mapping[str, Tensor], slopes: Mapping[str, Tensor], rate: float) -> None:
        """Move these weights, each along its slope."""
        for name, slope in clipped(slopes, self.pace).items():
            weight, pace = weights[name], self.pace
            speed = rate * pace.slow if is_slow(name) else rate
            slope = slope if pace.decoupled else slope + pace.decay * weight
            time = self.steps[name] = self.steps.get(name, 0) + 1
            first = self.first[name] = 0.9 * self.first.get(name, torch.zeros_like(slope)) + 0.1 * slope
            second = self.second[name] = 0.999 * self.second.get(name, torch.zeros_like(slope)) + 0.001 * slope**2
            if pace.corrected:
                first, second = first / (1 - 0.9**time), second / (1 - 0.999**time)
            faded = weight * (1 - speed * pace.decay) if pace.decoupled else weight
            weight.copy_(faded - speed * first / (second.sqrt() + 1e-8))


def clipped(slopes: Mapping[str, Tensor], pace: Pace) -> dict[str, Tensor]:
    """As long as `clip` at most, all of them together; torch adds 1e-6 to a length before it divides by it."""
    if pace.clipped == "values":
        return {name: slope.clamp(-pace.clip, pace.clip) for name, slope in slopes.items()}
    shorter = {}
    for names in [[*filter(is_slow, slopes)], [*filter(lambda name: not is_slow(name), slopes)]]:
        counted = names if pace.clipped == "apart" else list(slopes)
        length = math.sqrt(sum(float((slopes[name].double() ** 2).sum()) for name in counted))
        factor = 1.0 if pace.clipped == "never" else min(1.0, pace.clip / (length + 1e-6))
        shorter |= {name: factor * slopes[name] for name in names}
    return shorter
