"""Training detectors, alone and with Fed3D, against loops written from the paper and from what settings say.

Of the package they use scenes and their augmentation, the names of streams (so that batches come in the same order),
the first weights and what `detection_by_hand.py` names. All else is written out: what objects weigh, what clients say
of classes and what the server makes of that, what is frozen and what is shared, means, and every step of AdamW.
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
from torch import Tensor

from fedstill.core.dataset import ArrayDataset, Dataset, Subset
from fedstill.core.streams import Streams
from fedstill.core.task import Tensors
from fedstill.data.bundle import Bundle
from fedstill.detection.detection_task import Detection
from fedstill.detection.rooms import CLASSES
from fedstill.engines import InProcess
from fedstill.runtime.assemble import make_experiment
from fedstill.runtime.checkpoint import candidates
from fedstill.runtime.plan import make_plan
from fedstill.runtime.run import execute

from ..methods.sites import Site, build
from .detection_by_hand import (
    HEADINGS,
    PACE,
    POINTS,
    SAME_PACE,
    AdamW,
    Costs,
    Pace,
    alike,
    doubled,
    is_slow,
    loss_of,
    rooms,
    task_for,
)

TRAINING = {**SAME_PACE, "epochs": 2}
COHORTS = ((0, 1), (1, 2), (0, 2))  # who is asked in each of three rounds

# Models are compared by how far they lie apart, as a share of the way they came. In double precision that was 5e-13
# with a frozen encoder and 3e-10 at most with one that learns (biases before BatchNorm have no gradient but rounding).
# In single precision it was 8e-6 at most, over several seeds. The smallest of the mistakes that are made below moves a
# model by 2e-2 of its way.
CLOSE = 1e-8
CLOSE_IN_SINGLE, FAR = 1e-4, 1e-2


@dataclass(frozen=True)
class Reading:
    """How Fed3D is read. As it stands here is how it is meant; anything else is a mistake made on purpose."""

    weighed: str = "all"  # which terms of an object R multiplies; `class`, `box`, `none`
    local: bool = True  # g is in R
    across: bool = True  # G is in R
    mean_one: bool = True  # R is B times a share of the whole
    among: str = "batch"  # of what; `scene`
    matches: str = "own"  # of each layer of the decoder; `last`
    detached: bool = True  # nothing is learnt through g
    layers: str = "last"  # of the decoder, whose g clients tell the server of; `all`
    by_class: str = "mean"  # of g over a client's objects; `sum`
    clients: str = "sum"  # of what they say of a class; `mean`: over those that have it
    updated: bool = True  # G, after a round
    factor: bool = True  # O, in G
    kept: bool = True  # the G of a class that nobody has; else what the formula says of it
    mean: str = "samples"  # of clients' models; `uniform`
    learns: str = "prompts-and-heads"  # what is learnt and shared; `prompts`, `all`
    evaluated: bool = True  # BatchNorm of what does not learn
    moments: str = "fresh"  # of AdamW, in each round; `kept`


@dataclass
class ByHand:
    """Clients with scenes, and a server that holds a detector as a dictionary of tensors."""

    task: Detection
    data: Sequence[Dataset]
    state: dict[str, Tensor]  # of the shared model, by the names that a detector gives
    fed3d: bool  # else every object weighs the same, and everything is learnt and shared
    pace: Pace = PACE
    reading: Reading = Reading()
    epochs: int = 2
    batch: int = 2
    seed: int = 0
    exact: bool = True
    across: Tensor = field(init=False)  # G
    moments: dict[int, AdamW] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.model = self.task.build(self.task.architectures[0])
        self.across = torch.ones(len(self.task.classes), dtype=torch.float64)

    def travels(self, name: str) -> bool:
        """What learns and is shared: prompts, and all that comes after the encoder."""
        if not self.fed3d or self.reading.learns == "all":
            return True
        if self.reading.learns == "prompts":
            return name == "prompts"
        return not is_slow(name) and name != "fourier"

    def play(self, cohorts: Sequence[Sequence[int]]) -> ByHand:
        for round, cohort in enumerate(cohorts):
            rate = self.pace.rate_in(round, len(cohorts))
            replies = [self.trained(client, round, rate) for client in cohort]
            samples = [len(self.data[client]) if self.reading.mean == "samples" else 1 for client in cohort]
            for name in filter(self.travels, self.state):
                self.state[name] = merged([model[name] for model, _ in replies], samples)
            if self.fed3d and self.reading.updated:
                self.across = self.weights_of_classes([said for _, said in replies])
        return self

    def trained(self, client: int, round: int, rate: float) -> tuple[dict[str, Tensor], dict[int, float]]:
        """A client's model after its epochs, and what it says of each class that it has objects of."""
        model = self.model
        model.load_state_dict(self.state)
        model.train()
        if self.reading.evaluated and not self.travels("encoder."):
            model.tokens.eval()
            model.encoder.eval()
        learning = {name: one for name, one in model.named_parameters() if self.travels(name)}
        kept = self.reading.moments == "kept"
        optimiser = self.moments.setdefault(client, AdamW(self.pace)) if kept else AdamW(self.pace)
        found: list[list[tuple[int, float]]] = []
        streams = Streams(self.seed).at("round", round, "train", "client", client)
        for epoch in range(self.epochs):
            order = torch.from_numpy(streams.draw("order", epoch).permutation(len(self.data[client])))
            changes = streams.draw("augment", epoch)
            for start in range(0, len(order) - 1, self.batch):  # one scene alone is no batch, and is left out
                batch = self.task.augment(self.data[client].batch(order[start : start + self.batch]), changes)
                batch = doubled(batch) if self.exact else batch
                found.append([])

                def weigh(costs: Costs) -> tuple[Tensor, Tensor]:
                    return self.weights_of_objects(costs, found[-1])

                said = model(batch["inputs"])
                how = weigh if self.fed3d else alike
                total = loss_of(said, batch["labels"], batch["boxes"], how, self.reading.matches == "own")
                optimiser.step(learning, torch.autograd.grad(total, list(learning.values())), rate)
        return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}, self.statistic(found)

    def weights_of_objects(self, costs: Costs, found: list[tuple[int, float]]) -> tuple[Tensor, Tensor]:
        """R_i = B g_i G[y_i] / sum_j g_j G[y_j], of those matched in one layer."""
        kinds, wrong = costs.kinds.tolist(), 1 - costs.own.exp()
        if self.reading.layers == "last":
            found.clear()
        found += zip(kinds, wrong.tolist(), strict=True)
        wrong = wrong.detach() if self.reading.detached else wrong
        even = torch.ones_like(wrong)
        pull = torch.stack([self.across[kind] for kind in kinds]).to(even) if self.reading.across else even
        much = (wrong if self.reading.local else even) * pull
        weights = (len(much) if self.reading.mean_one else 1) * much / much.sum()
        if self.reading.among == "scene":
            here = torch.tensor([scene for scene, _, _ in costs.pairs])
            weights = torch.stack([much[at] / much[here == scene].mean() for at, scene in enumerate(here)])
        applied = self.reading.weighed
        return weights if applied in ("all", "class") else even, weights if applied in ("all", "box") else even

    def statistic(self, found: list[list[tuple[int, float]]]) -> dict[int, float]:
        """The mean of g over all objects of a class, in all steps of a round."""
        by_class: dict[int, list[float]] = {}
        for kind, wrong in (one for step in found for one in step):
            by_class.setdefault(kind, []).append(wrong)
        mean = self.reading.by_class == "mean"
        return {kind: sum(every) / (len(every) if mean else 1) for kind, every in by_class.items()}

    def weights_of_classes(self, said: Sequence[dict[int, float]]) -> Tensor:
        """G[o] = ln(1 + O sum_c S_c[o] / sum_o' sum_c S_c[o']), where anybody has the class."""
        classes = len(self.across)
        told = [[one[kind] for one in said if kind in one] for kind in range(classes)]
        mean = self.reading.clients == "mean"
        sums = torch.tensor([sum(each) / ((len(each) or 1) if mean else 1) for each in told], dtype=torch.float64)
        new = (1 + (classes if self.reading.factor else 1) * sums / sums.sum()).log()
        for kind in range(classes):
            if self.reading.kept and not told[kind]:
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
    """How far two models lie apart, as a share of the way that ours came; BatchNorm's statistics count for themselves.

    Over all weights together: a share of a single weight that hardly moved says little.
    """
    shares = []
    for running in (False, True):
        names = [name for name in ours if ours[name].is_floating_point() and ("running_" in name) == running]
        gap, way = (distance(ours, other, [name for name in names if not leave(name)]) for other in (theirs, start))
        shares.append(gap / way if way else gap)
    return max(shares)


def distance(some: Tensors, others: Tensors, names: Sequence[str]) -> float:
    return math.sqrt(sum(float((some[name].double() - others[name].double()).square().sum()) for name in names))


# In double precision: three rounds of two clients out of three


def data_for(headings: str) -> list[ArrayDataset]:
    """Three clients with 5, 3 and 4 rooms; beds, bookshelves and lamps are in the first one's alone."""
    return [rooms(number, first, headings) for number, first in ((5, 9), (3, 14), (4, 17))]


@cache
def played(method: str, headings: str, *settings: tuple[str, Any]) -> tuple[Tensors, Tensors]:
    """The server before and after all rounds of the package's own method."""
    task = task_for(headings)
    site = Site(build(method, task, TRAINING, **dict(settings)), task, data_for(headings), rounds=len(COHORTS))
    start = site.server
    for round, cohort in enumerate(COHORTS):
        site.play_round(round, cohort)
    return start, site.server


def by_hand(start: Tensors, headings: str, fed3d: bool, **changes: Any) -> ByHand:
    return ByHand(task_for(headings), data_for(headings), model_in(start), fed3d, **changes).play(COHORTS)


@pytest.mark.parametrize("headings", HEADINGS)
def test_fed3d_over_rounds(headings: str) -> None:
    """The whole of it: detectors agree, so do the weights of classes, and not a bit of what is frozen has changed.

    The second round has no beds, so that their weight is the first round's, with which the third round begins.
    """
    start, end = played("fed3d", headings)
    theirs = by_hand(start, headings, fed3d=True)
    before, after = model_in(start), model_in(end)
    assert apart(after, theirs.state, before) < CLOSE
    torch.testing.assert_close(end["class-weights"], theirs.across, rtol=0, atol=CLOSE)
    still = {name for name in before if name.startswith(("tokens.", "encoder.")) or name == "fourier"}
    assert {name for name in before if torch.equal(before[name], after[name])} == still
    held = [{kind for kind in data.columns["labels"].unique().tolist() if kind >= 0} for data in data_for(headings)]
    assert CLASSES.index("bed") in held[0] - held[1] - held[2]


@pytest.mark.parametrize(
    ("setting", "reading"),
    [
        (("local_weights", False), Reading(local=False)),
        (("global_weights", False), Reading(across=False)),
        (("share", "prompts"), Reading(learns="prompts")),
        (("share", "all"), Reading(learns="all")),
    ],
    ids=["without local weights", "without global weights", "prompts alone", "with the encoder"],
)
def test_the_parts_of_fed3d_that_can_be_left_out(setting: tuple[str, Any], reading: Reading) -> None:
    start, end = played("fed3d", "right-angled", setting)
    theirs = by_hand(start, "right-angled", fed3d=True, reading=reading)
    assert apart(model_in(end), theirs.state, model_in(start)) < CLOSE
    if "class-weights" in end:
        torch.testing.assert_close(end["class-weights"], theirs.across, rtol=0, atol=CLOSE)


MISTAKES = {
    "R is not applied": Reading(weighed="none"),
    "R multiplies the class alone": Reading(weighed="class"),
    "R multiplies the box alone": Reading(weighed="box"),
    "g is not in R": Reading(local=False),
    "G is not in R": Reading(across=False),
    "R is a share, not B of them": Reading(mean_one=False),
    "R has the mean 1 in each scene": Reading(among="scene"),
    "all layers have the last one's matches": Reading(matches="last"),
    "g is learnt through": Reading(detached=False),
    "all layers count in the statistic": Reading(layers="all"),
    "the statistic is a sum": Reading(by_class="sum"),
    "statistics are averaged": Reading(clients="mean"),
    "G is not updated": Reading(updated=False),
    "G is without the factor O": Reading(factor=False),
    "G of classes that nobody has is forgotten": Reading(kept=False),
    "clients count the same": Reading(mean="uniform"),
    "the encoder learns": Reading(learns="all"),
    "heads do not": Reading(learns="prompts"),
    "the encoder's BatchNorm is in training mode": Reading(evaluated=False),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_fed3d_would_be_noticed(mistake: str) -> None:
    start, end = played("fed3d", "right-angled")
    theirs = by_hand(start, "right-angled", fed3d=True, reading=MISTAKES[mistake])
    assert apart(model_in(end), theirs.state, model_in(start)) > FAR


@pytest.mark.parametrize("headings", HEADINGS)
def test_training_a_whole_detector(headings: str) -> None:
    """FedAvg's clients: the encoder learns, at half the rate; statistics are averaged, and counters the largest."""
    start, end = played("fedavg", headings)
    theirs = by_hand(start, headings, fed3d=False)
    before, after = model_in(start), model_in(end)
    assert apart(after, theirs.state, before) < CLOSE
    counters = [name for name in after if not after[name].is_floating_point()]
    assert counters
    assert all(torch.equal(after[name], theirs.state[name]) for name in counters)


MISSTEPS: dict[str, dict[str, Any]] = {
    "the encoder learns at the full rate": {"pace": replace(PACE, slow=1.0)},
    "nothing is clipped": {"pace": replace(PACE, clipped="never")},
    "values are clipped": {"pace": replace(PACE, clipped="values")},
    "encoder and rest are clipped apart": {"pace": replace(PACE, clipped="apart")},
    "decay is part of the gradient": {"pace": replace(PACE, decoupled=False)},
    "weights do not decay": {"pace": replace(PACE, decay=0.0)},
    "moments are not corrected": {"pace": replace(PACE, corrected=False)},
    "moments are kept": {"reading": Reading(moments="kept")},
    "the rate does not rise": {"pace": replace(PACE, warmup=0)},
    "the rate does not fall": {"pace": replace(PACE, cosine=False)},
    "clients count the same": {"reading": Reading(mean="uniform")},
}


@pytest.mark.parametrize("misstep", MISSTEPS)
def test_a_mistake_in_training_would_be_noticed(misstep: str) -> None:
    start, end = played("fedavg", "right-angled")
    theirs = by_hand(start, "right-angled", fed3d=False, **MISSTEPS[misstep])
    assert apart(model_in(end), theirs.state, model_in(start)) > FAR


# In single precision: runs, with the settings that a model brings along


def idle(name: str) -> bool:
    """What has no effect, so that its gradient is rounding and nothing else: biases of keys, which softmax takes no
    notice of (in the encoder it does, since prompts have none), and biases before BatchNorm.
    """
    keys = name.startswith("decoder.") and name.endswith(".key.bias")
    return keys or (name.startswith("tokens.level.linear") and name.endswith(".bias"))


@pytest.mark.parametrize("method", ["fed3d", "fedavg", "centralised"])
def test_runs_in_single_precision(method: str, tmp_path: Path) -> None:
    """Rate, warm-up, decay, clipping and the encoder's rate are those that the small detector asks for.

    Centralised training keeps the optimiser's moments from round to round, each of which is an epoch.
    """
    model, seed, alone = "small-detr3d-lite", 3, method == "centralised"
    train, test = rooms(9, 9, "right-angled"), rooms(2, 30, "right-angled")
    bundle = Bundle("few-rooms", train, test, classes=CLASSES, kind="scene", shape=(POINTS, 3))
    given = {"method": method, "data": "few-rooms", "model": model, "clients": 2, "rounds": 3, "seed": seed}
    training = {"batch": 2} if alone else {"batch": 2, "epochs": 2}
    plan = make_plan(make_experiment({**given, "training": training}), bundle=bundle)
    (progress, *_), _ = candidates(execute(plan, InProcess(), tmp_path).path)

    clients = range(1 if alone else 2)
    data = [train] if alone else [Subset(train, plan.clients.shards.rows(client)) for client in clients]
    start = plan.task.build(model, streams=Streams(seed).at("model", model)).state_dict()
    pace = Pace(rate=2e-3, slow=0.5, decay=0.05, clip=0.1, warmup=2)
    usual = {"epochs": 1 if alone else 2, "seed": seed, "exact": False}

    def otherwise(pace: Pace = pace, **reading: Any) -> ByHand:
        read = Reading(**{"moments": "kept" if alone else "fresh", **reading})
        one = ByHand(plan.task, data, dict(start), method == "fed3d", pace=pace, reading=read, **usual)
        return one.play([clients] * 3)

    theirs, after = otherwise(), model_in(progress.server)
    assert apart(after, theirs.state, start, idle) < CLOSE_IN_SINGLE
    if method == "fed3d":
        torch.testing.assert_close(progress.server["class-weights"], theirs.across, rtol=0, atol=CLOSE_IN_SINGLE)
        wrong = otherwise(updated=False)
    elif method == "centralised":
        wrong = otherwise(moments="fresh")
    else:
        wrong = otherwise(replace(pace, decay=0.0))
    assert apart(after, wrong.state, start, idle) > FAR
