from __future__ import annotations

import pickle
from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedstill.models import build_model, duplicate, freeze


def train_a_little(model: nn.Module, classes: int) -> None:
    model.train()
    optimiser = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    for _ in range(3):
        optimiser.zero_grad()
        F.nll_loss(model(torch.randn(8, 1, 8, 8))[0], torch.arange(8) % classes).backward()
        optimiser.step()


def copied(model: nn.Module) -> nn.Module:
    return deepcopy(model)


def pickled(model: nn.Module) -> nn.Module:
    restored = pickle.loads(pickle.dumps(model))
    assert isinstance(restored, nn.Module)
    return restored


def wrapped(model: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Identity(), model)


@pytest.mark.parametrize("after", [lambda model: model, copied, pickled, wrapped])
def test_a_frozen_extractor_does_not_move_in_training(after) -> None:
    model = build_model("cnn-bn", (1, 8, 8), 4)
    train_a_little(model, 4)
    freeze(model.extractor)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    trained = after(model)
    train_a_little(trained, 4)

    prefix = "1." if after is wrapped else ""
    now = trained.state_dict()
    for key, value in before.items():
        assert torch.equal(value, now[prefix + key]) == key.startswith("extractor."), key
    assert trained.training
    parts = dict(trained.named_modules())
    assert not any(part.training for part in parts[prefix + "extractor"].modules())
    assert parts[prefix + "head"].training


def test_dropout_of_a_frozen_part_is_silent() -> None:
    model = build_model("cnn-bn", (1, 8, 8), 4)
    freeze(model.extractor)
    model.train()
    x = torch.rand(4, 1, 8, 8)
    (one, features), (two, same) = model(x), model(x)
    assert torch.equal(features, same)
    assert not torch.equal(one, two), "the head is not frozen, its Dropout draws"


def test_without_freezing_the_same_parts_do_move() -> None:
    """The test above would prove nothing if BatchNorm stood still anyway."""
    model = build_model("cnn-bn", (1, 8, 8), 4)
    model.extractor.requires_grad_(False)
    before = model.extractor[2].running_mean.clone()
    train_a_little(model, 4)
    assert not torch.equal(before, model.extractor[2].running_mean)


def test_a_duplicate_has_tensors_of_its_own_and_the_same_answers() -> None:
    for name in ("cnn-bn", "resnet8"):
        model = build_model(name, (1, 8, 8), 4)
        twin = duplicate(model)
        inputs = torch.randn(4, 1, 8, 8)
        assert torch.equal(model.eval()(inputs)[0], twin.eval()(inputs)[0])
        twin.train()(inputs)
        with torch.no_grad():
            for parameter in twin.parameters():
                parameter.add_(1)
        fresh = dict(model.named_parameters())
        for key, tensor in twin.state_dict().items():
            assert not torch.equal(tensor, model.state_dict()[key]) or tensor.numel() == 0, key
        assert all(one is not fresh[key] for key, one in twin.named_parameters())
        assert not model.training


def test_a_duplicate_keeps_tied_parameters_tied() -> None:
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = first.weight
    twin = duplicate(nn.Sequential(first, second))
    assert twin[0].weight is twin[1].weight  # type: ignore[index]
    assert twin[0].weight is not first.weight  # type: ignore[index]


def test_a_duplicate_of_a_model_with_a_frozen_part_stays_frozen() -> None:
    model = build_model("cnn-bn", (1, 8, 8), 4)
    freeze(model.extractor)
    twin = duplicate(model)
    twin.train()
    assert not twin.extractor.training
    assert twin.head.training
