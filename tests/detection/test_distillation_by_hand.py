"""The objective of detectors against its description, written out: values, gradients, and a student that learns by it.

Teacher and student are detectors that really look at scenes, in double precision. Of the package they use what
`detection_by_hand.py` names, and the IoU of two boxes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedstill.core.dataset import Batch
from fedstill.core.message import part
from fedstill.core.streams import Streams
from fedstill.core.task import Tensors
from fedstill.core.training import Training
from fedstill.detection.boxes import iou
from fedstill.detection.distillation import DetectorMatching, MatchingSettings
from fedstill.detection.model import Predictions
from fedstill.distillation.distill import Distillation, Teaching
from fedstill.distillation.label_modes import under_labels
from fedstill.distillation.objective import Adapters
from fedstill.distillation.teachers import TeacherModel

from ..methods.sites import Site
from .detection_by_hand import (
    HEADINGS,
    PACE,
    SAME_PACE,
    AdamW,
    Pace,
    costs_of,
    data_of,
    doubled,
    loss_of,
    pairs_of,
    rooms,
    task_for,
    token_cost,
)

SCENES = 5
ALPHA, BETA, TEMPERATURE, LEAST = 0.3, 1.7, 2.5, 0.4
OPTIONS = {"alpha": ALPHA, "beta": BETA, "temperature": TEMPERATURE, "least": LEAST}
# How far values and gradients are off, as a share of their length. It was 6e-15 at most; the smallest of the mistakes
# that are made below is off by 8e-4 in a value, and the smallest in a gradient by 8e-2.
CLOSE, FAR = 1e-10, 1e-4
FROM_TEACHER = ["soft-targets", "box-targets", "empty-queries", "token-targets", "hint"]


@dataclass(frozen=True)
class Reading:
    """How the objective is read. As it stands here is how it is meant; anything else is a mistake made on purpose."""

    sure: bool = True  # only what the teacher is sure of is a finding
    once: bool = True  # of overlapping findings of a class the surest
    squared: bool = True  # T^2
    softened: bool = True  # the teacher too
    towards: str = "teacher"  # KL(teacher || student); `student`: the other way round
    nothing: bool = True  # "no object" is among what is compared
    over: str = "matched"  # mean over matched queries; `all`
    matches: str = "own"  # of each layer of the student's decoder; `last`
    layers: str = "sum"  # of terms; `mean`
    empty: bool = True  # queries without a match weigh less
    hinted: int = -1  # which layer's matches
    scaled: bool = False  # features, to length one


RIGHT = Reading()


def terms_of(student: Predictions, teacher: Predictions, phi: nn.Linear, reading: Reading) -> dict[str, Tensor]:
    """What the teacher teaches, without alpha; the student's queries are matched layer by layer."""
    said, boxes = teacher.layers[-1].log_probabilities.detach(), teacher.layers[-1].boxes.detach()
    found = [findings(*scene, reading) for scene in zip(said.exp(), boxes, strict=True)]
    most = max(map(len, found))
    labels, truth = torch.full((len(found), most), -1), torch.zeros(len(found), most, 7, dtype=boxes.dtype)
    for scene, queries in enumerate(found):
        for place, query in enumerate(queries):
            labels[scene, place], truth[scene, place] = said[scene, query, :-1].argmax(), boxes[scene, query]
    data, total = data_of(student), dict.fromkeys(("soft-targets", "box-targets", "empty-queries"), torch.zeros(()))
    matches = [pairs_of(layer, student.extent, labels, truth, data) for layer in student.layers]
    for layer, own in zip(student.layers, matches, strict=True):
        pairs = own if reading.matches == "own" else matches[-1]
        costs = costs_of(layer, student.extent, labels, truth, data, pairs)
        matched = len(costs.pairs)
        counted = matched + costs.others if reading.over == "all" else matched
        soft = [
            divergence(layer.log_probabilities[scene, query], said[scene, found[scene][place]], reading)
            for scene, query, place in costs.pairs
        ]
        lighter = data.empty if reading.empty else 1.0
        shares = {
            "soft-targets": torch.stack(soft).sum() / counted,
            "box-targets": costs.boxes.sum() / matched,
            "empty-queries": lighter * costs.empty / (matched + lighter * costs.others),
        }
        several = len(student.layers) if reading.layers == "mean" else 1
        total = {name: total[name] + share / several for name, share in shares.items()}
    total["token-targets"] = token_cost(student.tokens, labels, truth)
    hints = []
    for scene, query, place in matches[reading.hinted]:
        ours = phi.weight @ student.queries[scene, query] + phi.bias
        theirs = teacher.queries[scene, found[scene][place]].detach()
        if reading.scaled:
            ours, theirs = ours / ours.norm(), theirs / theirs.norm()
        hints.append((ours - theirs).square().mean())
    return {**total, "hint": BETA * torch.stack(hints).mean()}


def findings(said: Tensor, boxes: Tensor, reading: Reading) -> list[int]:
    """The teacher's queries in a scene, surest first, that give a class at least as much as `least`."""
    scores, kinds = (side.tolist() for side in said[:, :-1].max(dim=1))
    kept: list[int] = []
    for query in sorted(range(len(scores)), key=lambda query: -scores[query]):
        if reading.sure and scores[query] < LEAST:
            continue
        same = [other for other in kept if kinds[other] == kinds[query]]
        if not reading.once or all(iou(boxes[other], boxes[query]) <= 0.25 for other in same):
            kept.append(query)
    return kept


def divergence(ours: Tensor, theirs: Tensor, reading: Reading) -> Tensor:
    """T^2 sum_k q_k ln(q_k / p_k), p and q being probabilities to the power 1 / T, scaled to the sum 1."""
    if not reading.nothing:
        ours, theirs = ours[:-1], theirs[:-1]
    p = ours.exp() ** (1 / TEMPERATURE)
    q = theirs.exp() ** (1 / TEMPERATURE if reading.softened else 1)
    p, q = p / p.sum(), q / q.sum()
    p, q = (p, q) if reading.towards == "teacher" else (q, p)
    return (TEMPERATURE**2 if reading.squared else 1) * (q * (q / p).log()).sum()


@cache
def sides(headings: str) -> tuple[nn.Module, nn.Module, Batch, nn.Linear]:
    """Student, teacher, scenes, and phi.

    A teacher that has learnt nothing is sure of nothing, and finds nothing twice: this one speaks up, of larger things.
    Nor do layers of such a student differ much in what they say: the second one of this does.
    """
    task = task_for(headings)
    student, teacher = (task.build(name, streams=Streams(7).at(name)) for name in ("tiny", "larger"))
    with torch.no_grad():
        for one in student.decoder[1].parameters():
            one *= 3
        teacher.class_head[-1].weight *= 15
        teacher.class_head[-1].bias[-1] += 2
        teacher.box_head[-1].bias[3:6] += 1
    with Streams(7).ambient("phi"):
        phi = nn.Linear(16, 20).double()
    return student.train(), teacher.eval(), doubled(rooms(SCENES, 9, headings).batch(torch.arange(SCENES))), phi


def slopes(term: Tensor, headings: str) -> Tensor:
    """The gradient of all weights of the student and of phi, as one long row."""
    student, _, _, phi = sides(headings)
    learnt = [*student.parameters(), *phi.parameters()]
    found = torch.autograd.grad(term, learnt, retain_graph=True, allow_unused=True)
    pairs = zip(found, learnt, strict=True)
    return torch.cat([(torch.zeros_like(one) if slope is None else slope).flatten() for slope, one in pairs])


def off(ours: Tensor, theirs: Tensor) -> float:
    """How far one is from the other, as a share of its length."""
    return float(((ours - theirs).norm() / theirs.norm()).detach())


@pytest.mark.parametrize("headings", HEADINGS)
@pytest.mark.parametrize("labels", ["use", "no-ce"])
def test_values_and_gradients(headings: str, labels: Any) -> None:
    """Term by term, those of the teacher times alpha; labels teach what the task asks for, times what is left of 1.

    Without labels alpha is 1.
    """
    student, teacher, batch, phi = sides(headings)
    objective = under_labels(DetectorMatching(MatchingSettings(**OPTIONS)), labels)
    task, alpha = task_for(headings), ALPHA if labels == "use" else 1.0
    said = task.forward(student, batch)
    heard = task.forward(teacher, {"inputs": batch["inputs"]})
    ours = objective.terms(said, heard, batch["labels"], Adapters(phi))
    theirs = terms_of(said.predictions, heard.predictions, phi, RIGHT)
    for name in FROM_TEACHER:
        assert off(ours[name], alpha * theirs[name]) < CLOSE, name
        assert off(slopes(ours[name], headings), alpha * slopes(theirs[name], headings)) < CLOSE, name
    rest = [term for name, term in ours.items() if name not in FROM_TEACHER]
    assert bool(rest) == (labels == "use")
    if rest:
        told = (1 - alpha) * loss_of(said.predictions, batch["labels"], batch["boxes"])
        assert off(sum(rest), told) < CLOSE
        assert off(slopes(sum(rest), headings), slopes(told, headings)) < CLOSE


MISTAKES = {
    "whatever the teacher says is a finding": (Reading(sure=False), FROM_TEACHER),
    "things are found twice": (Reading(once=False), FROM_TEACHER),
    "the square of T is missing": (Reading(squared=False), ["soft-targets"]),
    "the teacher is not softened": (Reading(softened=False), ["soft-targets"]),
    "the divergence is the other way round": (Reading(towards="student"), ["soft-targets"]),
    "no object is not compared": (Reading(nothing=False), ["soft-targets"]),
    "the mean is over all queries": (Reading(over="all"), ["soft-targets"]),
    "all layers have the last one's matches": (
        Reading(matches="last"),
        ["soft-targets", "box-targets", "empty-queries"],
    ),
    "layers are averaged": (Reading(layers="mean"), ["soft-targets", "box-targets", "empty-queries"]),
    "empty queries weigh 1": (Reading(empty=False), ["empty-queries"]),
    "hints are for the first layer": (Reading(hinted=0), ["hint"]),
    "features are scaled": (Reading(scaled=True), ["hint"]),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_would_be_noticed(mistake: str) -> None:
    """In the terms that it concerns, and in no other."""
    reading, concerned = MISTAKES[mistake]
    student, teacher, batch, phi = sides("right-angled")
    said, heard = (task_for("right-angled").forward(model, {"inputs": batch["inputs"]}) for model in (student, teacher))
    ours = DetectorMatching(MatchingSettings(**OPTIONS)).label_free().terms(said, heard, None, Adapters(phi))
    wrong = terms_of(said.predictions, heard.predictions, phi, reading)
    for name in FROM_TEACHER:
        value = off(wrong[name], ours[name])
        slope = off(slopes(wrong[name], "right-angled"), slopes(ours[name], "right-angled"))
        assert min(value, slope) > FAR if name in concerned else max(value, slope) < CLOSE, name


# A student that learns

TRAINING = {**SAME_PACE, "epochs": 1, "keep_optimiser": True}
ROUNDS = 3


class ExactMatching(DetectorMatching):
    """With a phi in double precision."""

    def adapters(self, student_width: int, teacher_width: int) -> Adapters:
        return super().adapters(student_width, teacher_width).double()


@cache
def distilled() -> tuple[Tensors, Tensors]:
    """What the server has of student and phi, before and after all rounds."""
    task, teacher = task_for("right-angled"), TeacherModel("teacher", "larger", sides("right-angled")[1])
    teaching = Teaching(ExactMatching(MatchingSettings(**OPTIONS)), [teacher])
    method = Distillation(Distillation.Options(), task, Training(**TRAINING), {"teaching": teaching})
    method.check()
    site = Site(method, task, [rooms(SCENES, 9, "right-angled")], rounds=ROUNDS)
    return site.server, site.play()


def learnt(server: Tensors, pace: Pace = PACE, reading: Reading = RIGHT) -> dict[str, Tensor]:
    """Each round is an epoch; phi learns beside the student, and moments are kept to the end."""
    task, data, teacher = task_for("right-angled"), rooms(SCENES, 9, "right-angled"), sides("right-angled")[1]
    student, phi = task.build("tiny", part(server, "model/")).train(), nn.Linear(16, 20).double()
    phi.load_state_dict({name: server[f"adapters/parameters/student.{name}"] for name in ("weight", "bias")})
    weights = {**dict(student.named_parameters()), "phi.weight": phi.weight, "phi.bias": phi.bias}
    optimiser = AdamW(pace)
    for round in range(ROUNDS):
        streams = Streams(0).at("round", round, "train", "client", 0)
        order = torch.from_numpy(streams.draw("order", 0).permutation(SCENES))
        changes = streams.draw("augment", 0)
        for start in range(0, SCENES - 1, 2):
            batch = doubled(task.augment(data.batch(order[start : start + 2]), changes))
            said = student(batch["inputs"])
            told = terms_of(said, teacher(batch["inputs"]), phi, reading).values()
            total = (1 - ALPHA) * loss_of(said, batch["labels"], batch["boxes"]) + ALPHA * torch.stack([*told]).sum()
            optimiser.step(weights, torch.autograd.grad(total, list(weights.values())), pace.rate_in(round, ROUNDS))
    return {name: weight.detach() for name, weight in weights.items()}


def test_a_student_learns_by_it() -> None:
    """Three epochs of a distillation, with labels and a teacher; the encoder learns at half the rate, phi at all of it.

    How far students lie apart is said as a share of the way they came: it was 4e-10, and 0.4 and 0.2 with the
    mistakes that are made here.
    """
    before, after = map(own_names, distilled())

    def apart(theirs: Tensors) -> float:
        gap, way = (sum((after[name] - other[name]).square().sum() for name in after) for other in (theirs, before))
        return math.sqrt(gap / way)

    assert apart(learnt(distilled()[0])) < 1e-8
    for wrong in ({"pace": replace(PACE, slow=1.0)}, {"reading": Reading(towards="student")}):
        assert apart(learnt(distilled()[0], **wrong)) > 1e-2


def own_names(server: Tensors) -> dict[str, Tensor]:
    """The weights of the student by the names that a detector gives, and phi beside them."""
    phi = {f"phi.{name}": server[f"adapters/parameters/student.{name}"] for name in ("weight", "bias")}
    return {**part(server, "model/parameters/"), **phi}
