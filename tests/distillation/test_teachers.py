"""What teachers say: in evaluation, as one, remembered by sample, and understood before anyone learns from them."""

from __future__ import annotations

import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedstill.core.dataset import ArrayDataset, Subset
from fedstill.core.errors import InputError
from fedstill.distillation.teachers import TeacherCache, TeacherModel, first_outputs, teacher_outputs
from fedstill.tasks.classification import Classification

TASK = Classification(("a", "b", "c"), (1, 2, 2), ("mlp",))


class Model(nn.Module):
    """Linear, behind Dropout; counts the samples it was asked about."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.scale, self.asked = scale, 0
        self.drop = nn.Dropout(0.5)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        self.asked += len(inputs)
        features = self.norm(self.drop(inputs.flatten(1)))
        return F.log_softmax(self.scale * features[:, :3], dim=1), features[:, :2]


class Noisy(Model):
    """Draws at random even in evaluation."""

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        logits, features = super().forward(inputs)
        return F.log_softmax(logits + torch.randn_like(logits), dim=1), features


def data(samples: int = 6) -> ArrayDataset:
    values = torch.linspace(-2, 2, samples * 4).reshape(samples, 1, 2, 2)
    return ArrayDataset(inputs=values, labels=torch.arange(samples) % 3)


def test_several_teachers_speak_as_one() -> None:
    """The mean of their probabilities, and their features side by side."""
    one, two = Model(1.0), Model(-3.0)
    batch = data().batch(torch.arange(6))
    both = teacher_outputs([TeacherModel("one", "x", one), TeacherModel("two", "x", two)], TASK, batch)
    single = [model.eval()(batch["inputs"])[0].exp() for model in (one, two)]
    assert torch.allclose(both.log_probabilities.exp(), (single[0] + single[1]) / 2)
    assert both.features.shape == (6, 4)
    assert not both.log_probabilities.requires_grad


def test_lectures_are_heard_once_and_found_by_sample() -> None:
    teacher = TeacherModel("one", "x", Model())
    teacher_cache = TeacherCache([teacher])
    shard = Subset(data(), torch.tensor([5, 1, 3]))  # sample 5 comes first
    batch = shard.batch(torch.tensor([2, 0]))
    for _ in range(2):
        said = teacher_cache.of(TASK, shard, batch)
    direct = teacher_outputs([teacher], TASK, batch)
    assert batch["sample_id"].tolist() == [3, 5]
    assert torch.equal(said["log_probabilities"], direct.log_probabilities)
    assert torch.equal(said["features"], direct.features)
    assert isinstance(teacher.model, Model)
    assert teacher.model.asked == 3 + 2


def test_lectures_travel_without_what_was_said() -> None:
    teacher_cache = TeacherCache([TeacherModel("one", "x", Model())])
    said = teacher_cache.of(TASK, data(), data().batch(torch.arange(2)))
    arrived = pickle.loads(pickle.dumps(teacher_cache))
    assert teacher_cache.held
    assert not arrived.held
    again = arrived.of(TASK, data(), data().batch(torch.arange(2)))
    assert torch.equal(again["log_probabilities"], said["log_probabilities"])


def test_a_teacher_that_draws_says_the_same_whenever_it_is_first_asked() -> None:
    heard = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        heard.append(TeacherCache([TeacherModel("one", "x", Noisy())]).of(TASK, data(), data().batch(torch.arange(3))))
        assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(heard[0]["log_probabilities"], heard[1]["log_probabilities"])


def test_first_words_tell_what_a_teacher_cannot_read() -> None:
    assert first_outputs(TeacherModel("one", "x", Model()), TASK).log_probabilities.shape == (2, 3)
    with pytest.raises(InputError, match=r"teacher narrow cannot read an input of shape \(1, 2, 2\): mat1 and"):
        first_outputs(TeacherModel("narrow", "x", nn.Linear(7, 3)), TASK)
