"""Training detectors, alone and with Fed3D, against loops written from the paper and from what settings say.

Of the package they use the scenes, the names of streams (so that batches come in the same order), the first weights and
what `detection_by_hand.py` says. All else is written out: what objects weigh, what clients say of classes and what the
server makes of that, what is frozen and what is shared, means, and every step of AdamW.

Detectors are compared in double precision, in which two ways to add up the same numbers differ by nothing that counts;
in single precision, in which they are really trained, Adam gives a step of full length to a gradient that is nothing but
rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedstill.config import make_experiment
from fedstill.core.dataset import ArrayDataset, Batch, Dataset, Subset
from fedstill.core.kinds import load_state
from fedstill.core.streams import Streams
from fedstill.core.task import Tensors
from fedstill.data.bundle import Bundle
from fedstill.data.rooms import CLASSES, make_rooms
from fedstill.data.rooms.augment import SceneAugmentation
from fedstill.engines import InProcess
from fedstill.federation.checkpoint import candidates
from fedstill.federation.plan import make_plan
from fedstill.federation.run import execute
from fedstill.models import build_model
from fedstill.tasks.detection import Detected, Detection

from ..detection_by_hand import AdamW, Pace, alike, is_slow, loss_of
from .sites import Site, build

POINTS, EPOCHS, BATCH = 256, 2, 2
PACE = Pace(rate=2e-3, slow=0.5, decay=0.05, clip=0.1, warmup=1)
TRAINING = {
    "epochs": EPOCHS,
    "batch": BATCH,
    "optimiser": "adamw",
    "rate": PACE.rate,
    "encoder_rate": PACE.slow,
    "weight_decay": PACE.decay,
    "clip": PACE.clip,
    "schedule": "cosine",
    "warmup": PACE.warmup,
}
COHORTS = ((0, 1), (1, 2), (0, 2))  # who is asked in each of three rounds


@dataclass(frozen=True)
class Exact(Detection):
    """Detection with a tiny detector, in double precision."""

    bins: int = 1  # of headings; 1: it tells none

    def build(self, architecture: str, state: Tensors | None = None, streams: Streams | None = None) -> nn.Module:
        sizes = {"width": 16, "heads": 2, "feedforward": 16, "decoder_layers": 2, "tokens": 24, "neighbours": 8}
        chosen = {"queries": 9, "candidates": 16, "prompts": 3, "angle_bins": self.bins}
        with (streams or Streams(0)).ambient("initialise"):
            model = build_model("small-detr3d-lite", self.shape, len(self.classes), **sizes, **chosen).double()
        if state is not None:
            load_state(model, state)
        return model

    def forward(self, model: nn.Module, batch: Batch) -> Detected:
        return super().forward(model, doubled(batch))


def doubled(batch: Batch) -> Batch:
    return {name: column.double() if column.is_floating_point() else column for name, column in batch.items()}


@cache
def rooms(number: int, first: int, headings: Any) -> ArrayDataset:
    made = make_rooms(number, points=POINTS, first=first, seen=4, headings=headings)
    columns = (torch.as_tensor(column) for column in (made.points, made.classes, made.boxes))
    return ArrayDataset(**dict(zip(("inputs", "labels", "boxes"), columns, strict=True)))


@dataclass(frozen=True)
class Reading:
    """How Fed3D is read. As it stands here is how it is meant; anything else is a mistake made on purpose."""

    weighed: str = "all"  # which terms of an object R multiplies; `class`, `box`, `none`
    local: bool = True  # g is in R
    across: bool = True  # G is in R
    mean_one: bool = True  # R is B times a share of the whole
    detached: bool = True  # nothing is learnt through g
    layers: str = "last"  # of the decoder, whose g clients tell the server of; `all`
    by_class: str = "mean"  # of g over a client's objects; `sum`
    updated: bool = True  # G, after a round
    factor: bool = True  # O, in G
    kept: bool = True  # the G of a class that nobody has; else what the formula says of it
    mean: str = "samples"  # of clients' models; `uniform`
    learns: str = "prompts-and-heads"  # what is learnt and shared; `prompts`, `all`
    evaluated: bool = True  # BatchNorm of what does not learn
    moments: str = "fresh"  # of AdamW, in each round; `kept`


@dataclass
class ByHand:
    """Clients with scenes, and a server, which hold detectors as dictionaries of tensors."""

    task: Detection
    data: Sequence[Dataset]
    state: dict[str, Tensor]  # of the shared model, by the names that a detector gives
    rounds: int
    fed3d: bool
    pace: Pace = PACE
    reading: Reading = Reading()
    epochs: int = EPOCHS
    batch: int = BATCH
    seed: int = 0
    exact: bool = True
    across: Tensor = field(init=False)
    kept: dict[int, AdamW] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.across = torch.ones(len(self.task.classes), dtype=torch.float64)

    def travels(self, name: str) -> bool:
        """What learns and is shared: prompts and all that comes after them; of FedAvg everything."""
        if not self.fed3d or self.reading.learns == "all":
            return True
        if self.reading.learns == "prompts":
            return name == "prompts"
        return not is_slow(name) and name != "fourier"

    def play(self, cohorts: Sequence[Sequence[int]]) -> None:
        for round, cohort in enumerate(cohorts):
            replies = [self.trained(client, round) for client in cohort]
            samples = [len(self.data[client]) if self.reading.mean == "samples" else 1 for client in cohort]
            for name in filter(self.travels, self.state):
                models = [model[name] for model, _ in replies]
                self.state[name] = merged(models, samples)
            if self.fed3d and self.reading.updated:
                self.across = self.weights_of_classes([said for _, said in replies])

    def trained(self, client: int, round: int) -> tuple[dict[str, Tensor], dict[int, float]]:
        """A client's model after its epochs, and its statistic of each class that it has objects of."""
        model = self.task.build(self.task.architectures[0])
        model.load_state_dict(self.state)
        model.train()
        learning = {name: one for name, one in model.named_parameters() if self.travels(name)}
        if self.reading.evaluated and not self.travels("encoder."):
            model.tokens.eval()
            model.encoder.eval()
        optimiser = self.kept.setdefault(client, AdamW(self.pace)) if self.keeps else AdamW(self.pace)
        found: list[list[tuple[int, float]]] = []
        streams = Streams(self.seed).at("round", round, "train", "client", client)
        for epoch in range(self.epochs):
            order = torch.from_numpy(streams.draw("order", epoch).permutation(len(self.data[client])))
            changes = streams.draw("augment", epoch)
            for start in range(0, len(order) - 1, self.batch):  # what is left of one scene is left out
                batch = self.data[client].batch(order[start : start + self.batch])
                batch = self.task.augment(batch, changes)
                batch = doubled(batch) if self.exact else batch
                found.append([])

                def weigh(kinds: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
                    return self.weights_of_objects(kinds, own, found[-1])

                said = model(batch["inputs"])
                total = loss_of(said, batch["labels"], batch["boxes"], weigh if self.fed3d else alike)
                slopes = torch.autograd.grad(total, list(learning.values()))
                with torch.no_grad():
                    rate = self.pace.rate_in(round, self.rounds)
                    optimiser.step(learning, dict(zip(learning, slopes, strict=True)), rate)
        return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}, self.statistic(found)

    @property
    def keeps(self) -> bool:
        return self.reading.moments == "kept"

    def weights_of_objects(
        self, kinds: Tensor, own: Tensor, found: list[tuple[int, float]]
    ) -> tuple[Tensor, Tensor]:
        """R_i = B g_i G[y_i] / sum_j g_j G[y_j], of those matched in one layer."""
        wrong = 1 - own
        pull = torch.stack([self.across[kind] for kind in kinds.tolist()]).to(own)
        if self.reading.layers == "last":
            found.clear()
        found += zip(kinds.tolist(), wrong.tolist(), strict=True)
        much = (wrong if self.reading.local else 1) * (pull if self.reading.across else torch.ones_like(own))
        much = much.detach() if self.reading.detached else much
        weights = (len(much) if self.reading.mean_one else 1) * much / much.sum()
        even, weighed = torch.ones_like(weights), self.reading.weighed
        return weights if weighed in ("all", "class") else even, weights if weighed in ("all", "box") else even

    def statistic(self, found: list[list[tuple[int, float]]]) -> dict[int, float]:
        by_class: dict[int, list[float]] = {}
        for kind, wrong in (one for step in found for one in step):
            by_class.setdefault(kind, []).append(wrong)
        mean = self.reading.by_class == "mean"
        return {kind: sum(all_of) / (len(all_of) if mean else 1) for kind, all_of in by_class.items()}

    def weights_of_classes(self, said: Sequence[dict[int, float]]) -> Tensor:
        """G[o] = ln(1 + O sum_c S_c[o] / sum_o' sum_c S_c[o']), where anybody has the class."""
        classes = len(self.across)
        sums = torch.tensor([sum(one.get(kind, 0.0) for one in said) for kind in range(classes)], dtype=torch.float64)
        new = (1 + (classes if self.reading.factor else 1) * sums / sums.sum()).log()
        for kind in range(classes):
            if self.reading.kept and not any(kind in one for one in said):
                new[kind] = self.across[kind]
        return new


def merged(models: Sequence[Tensor], weights: Sequence[int]) -> Tensor:
    """Means; of counters the largest."""
    if not models[0].is_floating_point():
        return max(models)
    mean = sum(weight * model.double() for weight, model in zip(weights, models, strict=True)) / sum(weights)
    return mean.to(models[0].dtype)


def model_in(server: Tensors) -> dict[str, Tensor]:
    """The shared model, by the names that a detector gives."""
    return {name.split("/", 2)[2]: tensor.clone() for name, tensor in server.items() if name.startswith("model/")}


def apart(ours: Tensors, theirs: Tensors, start: Tensors, leave: Callable[[str], bool] = lambda name: False) -> float:
    """How far two models lie apart, as a share of the way that one of them came; statistics count for themselves."""
    shares = []
    for running in (False, True):
        names = [name for name in ours if ("running_" in name) == running and not leave(name)]
        names = [name for name in names if ours[name].is_floating_point()]
        gap, way = (distance(ours, other, names) for other in (theirs, start))
        shares.append(gap / way if way else gap)
    return max(shares)


def distance(some: Tensors, others: Tensors, names: Sequence[str]) -> float:
    return math.sqrt(sum(float((some[name].double() - others[name].double()).square().sum()) for name in names))


# In double precision, on one processor


def task_of(headings: str) -> Exact:
    bins = 1 if headings == "right-angled" else 4
    return Exact(CLASSES, (POINTS, 3), ("tiny",), augmentation=SceneAugmentation(), bins=bins)


def data_of(headings: str) -> list[ArrayDataset]:
    """Three clients with 5, 3 and 4 rooms. Three classes are in the first one's rooms alone."""
    return [rooms(number, first, headings) for number, first in ((5, 9), (3, 14), (4, 17))]


@cache
def played(method: str, headings: str, *settings: tuple[str, Any]) -> tuple[Tensors, Tensors]:
    """The server before and after all rounds of the package's own method."""
    site = Site(build(method, task_of(headings), TRAINING, **dict(settings)), task_of(headings), data_of(headings), 3)
    start = site.server
    for round, cohort in enumerate(COHORTS):
        site.play_round(round, cohort)
    return start, site.server


def by_hand(start: Tensors, headings: str, fed3d: bool, **changes: Any) -> ByHand:
    one = ByHand(task_of(headings), data_of(headings), model_in(start), rounds=len(COHORTS), fed3d=fed3d, **changes)
    one.play(COHORTS)
    return one
