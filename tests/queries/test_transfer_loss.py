"""Learning a class from models of peers: the probe, the loss and both phases, against plain torch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedstill.core.dataset import ANSWERS, ArrayDataset, Batch
from fedstill.core.fit import Loss, Trained
from fedstill.core.kinds import state_of
from fedstill.core.message import digest
from fedstill.core.protocols import Meter
from fedstill.core.streams import Streams
from fedstill.core.task import Output
from fedstill.core.training import Training
from fedstill.data.augmentation import Augmentation
from fedstill.models.classifier import Classifier
from fedstill.queries.probe_rule import ProbeRule
from fedstill.queries.transfer_loss import (
    QueryLesson,
    Watch,
    class_mask,
    learn,
    probe,
    query_loss,
    refine,
    said_together,
    sum_of_words,
)
from fedstill.shared_image.proxy_selection import pool_outputs
from fedstill.tasks.classification import Classification

TASK = Classification(("a", "b", "c", "d"), (1, 8, 8), ("mlp", "cnn-bn"))
TRAINING = Training(epochs=2, batch=8, optimiser="adam", rate=1e-3, weight_decay=4e-4)
STREAMS = Streams(3)
MASK = class_mask(4, local=(0, 1), query=(2,), weight=1.5)


class Unchanged(Augmentation):
    """Every sample as it is; but a task that has it says that it augments."""

    def __call__(self, batch: Batch, generator: np.random.Generator) -> Batch:
        return batch


def model(name: str, seed: int) -> Any:
    """Drawn, with running statistics that are not those of a fresh model."""
    made = TASK.build(name, streams=Streams(seed))
    for module in made.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.add_(0.1 * seed)
    return made


def samples(number: int = 24, classes: int = 2) -> ArrayDataset:
    generator = torch.Generator().manual_seed(5)
    return ArrayDataset(
        inputs=torch.randn(number, 1, 8, 8, generator=generator),
        labels=torch.randint(classes, (number,), generator=generator),
    )


def head_of(student: Classifier) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in student.head.state_dict().items()}


# Probing


def test_the_probe_is_the_mean_of_what_is_said_of_noise() -> None:
    teacher = model("cnn-bn", 1)
    noise = torch.from_numpy(STREAMS.draw("probe").standard_normal((7, 1, 8, 8))).float()
    teacher.eval()
    with torch.no_grad():
        expected = F.softmax(teacher.head(teacher.extractor(noise)).double(), dim=1)
    before = digest(state_of(teacher))
    teacher.train()  # the mode of a model after training
    probed = probe(TASK, teacher, STREAMS, samples=7)
    torch.testing.assert_close(probed.probabilities, expected.mean(dim=0), rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(probed.log_probabilities, expected.log().mean(dim=0), rtol=1e-5, atol=1e-9)
    assert float(probed.probabilities.sum()) == pytest.approx(1.0, abs=1e-6)
    assert digest(state_of(teacher)) == before


def test_a_model_of_two_classes_is_found_to_know_these_two() -> None:
    """A head whose biases are 0, 0, -20, -20 on features of nothing says a half, a half, and 2e-9."""
    teacher = model("mlp", 1)
    with torch.no_grad():
        teacher.head.weight.zero_()
        teacher.head.bias.copy_(torch.tensor([0.0, 0.0, -20.0, -20.0]))
    probed = probe(TASK, teacher, STREAMS)
    for rule in (ProbeRule("threshold"), ProbeRule("gap")):
        assert rule.known(probed).tolist() == [True, True, False, False]
        assert rule.admits(probed, (2, 1))
        assert not rule.admits(probed, ())


# The loss


def test_the_words_of_teachers_are_added_up() -> None:
    teachers, data = [model("mlp", 1), model("cnn-bn", 2)], samples()
    expected = torch.zeros(24, 4)
    for teacher in teachers:
        teacher.eval()
        with torch.no_grad():
            expected += F.softmax(teacher.head(teacher.extractor(data.columns["inputs"])) / 2, dim=1)
    rows = torch.arange(24)
    torch.testing.assert_close(said_together(TASK, teachers, data.batch(rows), 2.0), expected)
    torch.testing.assert_close(sum_of_words(TASK, teachers, data, 2.0), expected)


def test_a_mixture_weighs_teachers_by_their_confidence_and_sums_to_one() -> None:
    """In plain torch, sample by sample; two copies of a teacher count as one, and as two in a sum."""
    teachers, data = [model("mlp", 1), model("cnn-bn", 2)], samples()
    said = []
    for teacher in teachers:
        teacher.eval()
        with torch.no_grad():
            said.append(F.softmax(5 * teacher.head(teacher.extractor(data.columns["inputs"])), dim=1).double())
    weights = [1 + (one * one.log()).sum(dim=1, keepdim=True) / np.log(4) for one in said]
    expected = (weights[0] * said[0] + weights[1] * said[1]) / (weights[0] + weights[1])
    found = sum_of_words(TASK, teachers, data, 0.2, "mixture")
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(found.sum(dim=1), torch.ones(24))
    twice = sum_of_words(TASK, [teachers[0]] * 2, data, 1.0, "mixture")
    torch.testing.assert_close(twice, sum_of_words(TASK, teachers[:1], data), rtol=1e-5, atol=1e-6)


def test_the_loss_by_hand() -> None:
    """One sample, two classes counted twice and once; teachers say (1/2, 1/2) and (1, 0), the student (1/4, 3/4).

    - [2 (1/2 + 1) log 1/4 + 1 (1/2 + 0) log 3/4] = 3 log 4 + log(4/3) / 2, times alpha.
    """
    output = Output(torch.tensor([[0.25, 0.75]]).log(), torch.zeros(1, 1), {"cross-entropy": torch.tensor(0.7)})
    batch = {"said": torch.tensor([[1.5, 0.5]])}
    terms = query_loss(torch.tensor([2.0, 1.0]), alpha=0.1)(output, batch, {})
    assert float(terms["teachers"]) == pytest.approx(0.1 * (3 * np.log(4) + np.log(4 / 3) / 2), rel=1e-6)
    assert float(terms["cross-entropy"]) == pytest.approx(0.7)
    fresher = query_loss(torch.tensor([2.0, 1.0]))(output, batch, {"said": torch.tensor([[0.0, 0.0]])})
    assert float(fresher["teachers"]) == 0.0  # what is said of this very batch comes first


# The first phase


def plain(student: nn.Module, said: Tensor, data: ArrayDataset, temperature: float = 1.0) -> list[float]:
    """The same epochs in plain torch: the cross-entropy, and the masked one with the sum of what teachers say."""
    optimiser = torch.optim.Adam(student.parameters(), lr=1e-3, weight_decay=4e-4)
    student.train()
    inputs, labels, told = data.columns["inputs"], data.columns["labels"], []
    for epoch in range(TRAINING.epochs):
        for rows in torch.from_numpy(STREAMS.draw("order", epoch).permutation(len(data))).split(8):
            optimiser.zero_grad()
            logits = student.head(student.extractor(inputs[rows]))
            words = F.log_softmax(F.log_softmax(logits, dim=1) / temperature, dim=1)
            teachers = -0.5 * (MASK * said[rows] * words).sum(dim=1).mean()
            (F.cross_entropy(logits, labels[rows]) + teachers).backward()
            optimiser.step()
            told.append(float(teachers.detach()))
    return told


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_the_first_phase_takes_the_steps_of_plain_torch(temperature: float) -> None:
    teachers, data = [model("mlp", 1), model("cnn-bn", 2)], samples()
    student, other = model("mlp", 7), model("mlp", 7)
    loss = query_loss(MASK, 0.5, temperature)
    trained = learn(student, QueryLesson(TASK, teachers, data, loss, TRAINING, STREAMS, Meter(), temperature))
    told = plain(other, sum_of_words(TASK, teachers, data, temperature), data, temperature)
    assert trained.steps == 6
    assert trained.terms["teachers"] == pytest.approx(np.mean(told), rel=1e-4)
    for mine, theirs in zip(student.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


def test_without_labels_only_teachers_count() -> None:
    lesson = QueryLesson(TASK, [model("mlp", 1)], samples().unlabelled(), query_loss(MASK), TRAINING, STREAMS, Meter())
    trained = learn(model("mlp", 7), lesson)
    assert set(trained.terms) == {"teachers"}


def test_words_that_are_kept_are_those_that_are_said_again() -> None:
    """A task that augments asks its teachers at every batch; another once. The same samples give the same model."""
    teachers, data = [model("mlp", 1), model("cnn-bn", 2)], samples()
    asked, kept = model("mlp", 7), model("mlp", 7)
    again, once = Meter(), Meter()
    augmenting = replace(TASK, augmentation=Unchanged())
    assert augmenting.augments
    assert not TASK.augments
    learn(asked, QueryLesson(augmenting, teachers, data, query_loss(MASK), TRAINING, STREAMS, again))
    learn(kept, QueryLesson(TASK, teachers, data, query_loss(MASK), TRAINING, STREAMS, once))
    for one, other in zip(asked.parameters(), kept.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    assert again.forward - once.forward == 24 * 2  # two teachers, two epochs instead of one pass
    assert again.backward == once.backward == 48


# The second phase


def refined(
    student: Classifier,
    head: dict[str, Tensor],
    data: ArrayDataset,
    training: Training = TRAINING,
    frozen: float = 0.0,
    watch: Watch | None = None,
) -> Trained:
    teachers = [model("mlp", 1), model("cnn-bn", 2)]
    lesson = QueryLesson(TASK, teachers, data, query_loss(MASK, 0.5), training, STREAMS, Meter(), watch=watch)
    return refine(student, head, lesson, frozen)


def test_the_head_starts_from_what_it_was_and_the_rest_stays() -> None:
    """At a rate far below the precision of weights nothing moves: the head is the old one, to the bit."""
    student, before = model("cnn-bn", 7), head_of(model("cnn-bn", 8))
    extractor = digest(state_of(student.extractor))
    refined(student, before, samples(), TRAINING.model_copy(update={"rate": 1e-30, "weight_decay": 0.0}))
    assert digest(state_of(student.extractor)) == extractor
    assert digest(head_of(student)) == digest(before)
    refined(student, before, samples())
    assert digest(state_of(student.extractor)) == extractor  # statistics included
    assert digest(head_of(student)) != digest(before)


def test_the_second_phase_takes_the_steps_of_plain_torch() -> None:
    """On features, with the head alone in the optimiser."""
    student, other, data = model("mlp", 7), model("mlp", 7), samples()
    before = head_of(model("mlp", 8))
    trained = refined(student, before, data)
    with torch.no_grad():
        features = other.extractor(data.columns["inputs"])
    head = Classifier(nn.Identity(), other.head, 200)
    head.head.load_state_dict(before)
    told = plain(
        head,
        sum_of_words(TASK, [model("mlp", 1), model("cnn-bn", 2)], data),
        ArrayDataset(inputs=features, labels=data.columns["labels"]),
    )
    assert trained.terms["teachers"] == pytest.approx(np.mean(told), rel=1e-4)
    for name, tensor in student.head.named_parameters():
        torch.testing.assert_close(tensor, head.head.get_parameter(name), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5])
@pytest.mark.parametrize("clip", [None, 0.05])
def test_weights_that_matter_most_to_the_labels_are_held(share: float, clip: float | None) -> None:
    """Which they are, by plain autograd over one batch of everything; they stay to the bit, and no other does."""
    student, data, before = model("mlp", 7), samples(), head_of(model("mlp", 8))
    head = nn.Linear(200, 4)
    head.load_state_dict(before)
    with torch.no_grad():
        features = student.extractor(data.columns["inputs"])
    F.cross_entropy(head(features), data.columns["labels"]).backward()
    squares = torch.cat([head.weight.grad.flatten(), head.bias.grad.flatten()]).square()
    count = round(share * 804)  # 4 x 200 weights and 4 biases
    most = set(squares.topk(count).indices.tolist())
    training = TRAINING.model_copy(update={"batch": 24, "rate": 0.01, "clip": clip})
    refined(student, before, data, training, frozen=share)
    moved = torch.cat([student.head.weight.flatten(), student.head.bias.flatten()]).detach()
    held = moved == torch.cat([before["weight"].flatten(), before["bias"]])
    assert set(torch.nonzero(held).flatten().tolist()) == most


def test_held_weights_do_not_change_how_others_learn() -> None:
    """The first step of Adam is one rate for every weight: held or not, the rest takes the same one."""
    data, before = samples(), head_of(model("mlp", 8))
    once = TRAINING.model_copy(update={"epochs": 1, "batch": 24})
    free, held = model("mlp", 7), model("mlp", 7)
    refined(free, before, data, once)
    refined(held, before, data, once, frozen=0.2)
    same = held.head.weight == before["weight"]
    assert torch.equal(held.head.weight[~same], free.head.weight[~same])
    assert 0 < int(same.sum()) < same.numel()


def test_looking_for_important_weights_moves_no_statistics() -> None:
    """A head with BatchNorm counts its batches: three of eight in the one epoch it learns, and no more."""
    task = Classification(TASK.classes, (16, 3), ("pointnet-tiny",))
    student = task.build("pointnet-tiny", streams=Streams(1))
    generator = torch.Generator().manual_seed(5)
    data = ArrayDataset(inputs=torch.randn(24, 16, 3, generator=generator), labels=torch.arange(24) % 2)
    once = TRAINING.model_copy(update={"epochs": 1})
    lesson = QueryLesson(task, [student], data, query_loss(MASK), once, STREAMS, Meter())
    refine(student, head_of(student), lesson, frozen=0.1)
    counters = [int(tensor) for name, tensor in student.head.state_dict().items() if name.endswith("batches_tracked")]
    assert counters == [3, 3]


# Watching


@pytest.mark.parametrize("frozen", [0.0, 0.1])
def test_to_watch_changes_nothing(frozen: float) -> None:
    """Somebody who scores the model after each epoch leaves it in evaluation; what is held is then in its place."""
    data, seen = samples(), []
    before = head_of(model("cnn-bn", 8))
    loss: Loss = query_loss(MASK)

    def watch(phase: str, epoch: int, now: nn.Module) -> None:
        TASK.score([now], data)
        assert isinstance(now, Classifier)
        kept = float((now.head[1].weight == before["1.weight"]).double().mean())
        seen.append((phase, epoch, phase == "head" and kept > 0))

    ended, terms = [], []
    for watching in (None, watch):
        student = model("cnn-bn", 7)
        lesson = QueryLesson(TASK, [model("mlp", 1)], data, loss, TRAINING, STREAMS, Meter(), watch=watching)
        first = learn(student, lesson)
        second = refined(student, before, data, frozen=frozen, watch=watching)
        ended.append(digest(state_of(student)))
        terms += [first, second]
    assert ended[0] == ended[1]
    assert seen == [("features", 1, False), ("features", 2, False), ("head", 1, frozen > 0), ("head", 2, frozen > 0)]
    for alone, watched in zip(terms[:2], terms[2:], strict=True):
        assert alone.steps == watched.steps
        assert alone.terms == pytest.approx(dict(watched.terms), rel=1e-6)


def test_neither_teachers_nor_selection_are_shown_where_things_are() -> None:
    """Boxes say as much as labels do."""

    class Watched(Classification):
        def forward(self, model: nn.Module, batch: Batch) -> Output:
            assert not set(ANSWERS) & set(batch)
            return Output(torch.zeros(len(batch["inputs"]), 2), torch.zeros(len(batch["inputs"]), 1))

    task = Watched.__new__(Watched)
    data = ArrayDataset(inputs=torch.zeros(3, 4), labels=torch.zeros(3, 1).long(), boxes=torch.zeros(3, 1, 7))
    assert said_together(task, [nn.Identity()] * 2, data.batch(torch.arange(3))).tolist() == [[1.0, 1.0]] * 3
    assert pool_outputs(task, nn.Identity(), data)[1].shape == (3, 2)
