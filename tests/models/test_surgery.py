from __future__ import annotations

import pickle
from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedstill.core.streams import Streams
from fedstill.models import Classifier, build_model, duplicate, freeze, replace_head, unfreeze


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


def test_unfreezing_makes_all_of_it_learn_again() -> None:
    model = build_model("cnn-bn", (1, 8, 8), 4)
    freeze(model.extractor[2])
    freeze(model.extractor)
    unfreeze(model.extractor)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    train_a_little(model, 4)
    assert all(not torch.equal(before[key], value) for key, value in model.state_dict().items())


@pytest.mark.parametrize("name", ["mlp", "cnn", "cnn-bn", "resnet8", "wrn16-1"])
def test_a_new_head_has_other_classes_and_leaves_the_extractor_alone(name: str) -> None:
    model = build_model(name, (1, 8, 8), 10).eval()
    x = torch.rand(3, 1, 8, 8)
    features = model(x)[1]
    replace_head(model, 3)
    log_probabilities, same = model(x)
    assert log_probabilities.shape == (3, 3)
    assert torch.equal(features, same)
    assert not any(part.training for part in model.head.modules())


def deep_model() -> Classifier:
    head = nn.Sequential(nn.Linear(64, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.5), nn.Linear(12, 10))
    return Classifier(nn.Flatten(), head, 64)


def test_a_head_of_several_layers_forgets_all_of_them() -> None:
    model = deep_model()
    train_a_little(model, 10)
    learnt = {key: value.clone() for key, value in model.head.state_dict().items()}
    replace_head(model, 2)
    assert [type(part) for part in model.head] == [nn.Linear, nn.BatchNorm1d, nn.ReLU, nn.Dropout, nn.Linear]
    assert (model.head[0].in_features, model.head[0].out_features, model.head[4].out_features) == (64, 12, 2)
    assert not torch.equal(model.head[0].weight, learnt["0.weight"])
    assert torch.equal(model.head[1].running_mean, torch.zeros(12))
    assert model.head[1].num_batches_tracked == 0


@pytest.mark.parametrize("make", [deep_model, lambda: build_model("cnn", (1, 8, 8), 10)])
def test_a_new_head_is_drawn_from_the_ambient_generator(make) -> None:
    def fresh(seed: int) -> dict[str, torch.Tensor]:
        model = make()
        with Streams(seed).ambient("head"):
            replace_head(model, 5)
        return model.head.state_dict()

    one, again, other = fresh(0), fresh(0), fresh(1)
    assert all(torch.equal(value, again[key]) for key, value in one.items())
    assert all(not torch.equal(value, other[key]) for key, value in one.items() if value.dim() > 1)


def test_a_new_head_is_not_frozen_even_where_the_old_one_was() -> None:
    model = build_model("cnn-bn", (1, 8, 8), 4)
    freeze(model.head)
    replace_head(model, 4)
    model.train()
    assert all(part.training for part in model.head.modules())
    assert all(parameter.requires_grad for parameter in model.head.parameters())


def test_the_new_head_keeps_the_precision_of_the_model() -> None:
    model = build_model("cnn", (1, 8, 8), 4).double()
    replace_head(model, 2)
    assert model(torch.rand(2, 1, 8, 8, dtype=torch.float64))[0].dtype == torch.float64


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
