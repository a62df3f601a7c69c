from __future__ import annotations

import pickle
from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedstill.core.kinds import load_state, state_of
from fedstill.models import build_model, duplicate, freeze
from fedstill.models.surgery import models_like


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


@pytest.mark.parametrize("name", ["cnn-bn", "resnet8", "vit-tiny", "frozen", "tied", "recurrent"])
def test_a_model_like_another_is_a_duplicate_that_loaded_the_state(name: str) -> None:
    """The same numbers, modes and gradients, in memory of its own."""
    template = template_of(name)
    make = models_like(template)
    state = {
        name: torch.rand_like(tensor) if tensor.is_floating_point() else tensor + 1
        for name, tensor in state_of(template).items()
    }
    expected = duplicate(template)
    load_state(expected, state)
    one, two = make(state), make(state)
    assert list(one.state_dict()) == list(expected.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(state_of(one).values(), state_of(expected).values(), strict=True))
    learns = [[parameter.requires_grad for parameter in model.parameters()] for model in (one, expected)]
    assert learns[0] == learns[1]
    places = [
        tensor.data_ptr()
        for holder in (one, two, template)
        for tensor in {id(t): t for t in holder.state_dict(keep_vars=True).values()}.values()
    ]
    assert len(set(places)) == len(places)
    assert not {tensor.data_ptr() for tensor in state.values()} & set(places)
    one.register_forward_hook(lambda *given: None)
    assert not two._forward_hooks
    assert not template._forward_hooks


def template_of(name: str) -> nn.Module:
    if name == "tied":
        layers = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        layers[1].weight = layers[0].weight
        return layers
    if name == "recurrent":
        return nn.GRU(3, 4)
    model = build_model("cnn-bn" if name == "frozen" else name, (1, 8, 8), 4)
    if name == "frozen":
        freeze(model.extractor)
    return model


def test_a_state_of_another_type_is_converted_and_one_that_does_not_fit_is_refused() -> None:
    template = build_model("cnn", (1, 8, 8), 4)
    make, state = models_like(template), state_of(template)
    made = make({name: tensor.double() for name, tensor in state.items()})
    assert all(torch.equal(one, state[name]) for name, one in state_of(made).items())
    first = next(iter(state))
    with pytest.raises(RuntimeError, match="size mismatch"):
        make({**state, first: torch.zeros(1)})
    with pytest.raises(RuntimeError, match="Missing key"):
        make({name: tensor for name, tensor in state.items() if name != first})
    with pytest.raises(RuntimeError, match="Unexpected key"):
        make({**state, "parameters/more": torch.zeros(1)})
