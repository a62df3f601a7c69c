"""Settings behind a model's name: GroupNorm with as many parameters, frozen layers, sizes; on every path."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import fedstill
from fedstill.core.errors import InputError
from fedstill.core.kinds import norm_layers, state_of
from fedstill.core.message import part
from fedstill.models import build_model, models
from fedstill.models.model_settings import model_name
from fedstill.models.portable.written_out import portable
from fedstill.runtime.assemble import make_experiment, override
from fedstill.runtime.plan import make_plan

IMAGE, CLOUD = (3, 16, 16), (64, 3)
WITH_NORM = {
    "cnn-bn": IMAGE,
    "resnet8": IMAGE,
    "resnet18": IMAGE,
    "wrn16-1": IMAGE,
    "resnet18-imagenet": IMAGE,
    "mobilenetv3-small": IMAGE,
    "pointnet-tiny": CLOUD,
    "small-pointnet2-lite": CLOUD,
    "dgcnn:width=8,neighbours=5": CLOUD,
    "pointnet2-segmentation-lite:width=8": CLOUD,
}


def grouped(name: str) -> str:
    return f"{name}{',' if ':' in name else ':'}norm=group"


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(("name", "shape"), WITH_NORM.items())
def test_group_norm_has_as_many_parameters_and_treats_samples_alone(name: str, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    plain, model = build_model(name, shape, 4), build_model(grouped(name), shape, 4)
    assert count(model) == count(plain)
    assert dict(model.named_parameters()).keys() == dict(plain.named_parameters()).keys()
    assert not norm_layers(model)
    assert not [name for name in state_of(model) if name.startswith(("buffers/", "counters/"))]
    for layer in model.modules():
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0
    inputs = torch.randn(3, *shape)
    whole = model.train()(inputs)[0]
    alone = torch.cat([model(one.unsqueeze(0))[0] for one in inputs])
    torch.testing.assert_close(whole, alone, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(model.eval()(inputs)[0], whole, rtol=1e-3, atol=1e-4)
    whole.square().sum().backward()
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in model.parameters())


@pytest.mark.parametrize("name", ["pointnet-tiny", "small-pointnet2-lite", "dgcnn:width=8,neighbours=5"])
def test_the_portable_form_of_a_grouped_model_computes_the_same(name: str) -> None:
    torch.manual_seed(1)
    model = build_model(grouped(name), (96, 3), 4).eval()
    with torch.no_grad():
        for weight in model.parameters():  # norms that differ from channel to channel
            weight.add_(0.1 * torch.randn_like(weight))
        clouds = torch.randn(2, 96, 3)
        torch.testing.assert_close(portable(model)(clouds)[0], model(clouds)[0], rtol=1e-4, atol=1e-5)


def test_group_norm_by_hand() -> None:
    """Sixteen channels are one group: the mean and variance of a sample over all its values."""
    model = build_model("cnn-bn:norm=group,width=16", (1, 8, 8), 2)
    norm = next(layer for layer in model.modules() if isinstance(layer, nn.GroupNorm))
    values = torch.randn(2, 16, 8, 8)
    flat = values.flatten(1)
    expected = (flat - flat.mean(1, keepdim=True)) / (flat.var(1, unbiased=False, keepdim=True) + norm.eps).sqrt()
    torch.testing.assert_close(norm(values).flatten(1), expected)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("mlp:norm=group", "model 'mlp' has no BatchNorm: leave norm=group out"),
        ("cnn:norm=layer", r"model 'cnn': norm: Input should be 'batch' or 'group'"),
        ("cnn:depth=3", "model 'cnn' has no size called 'depth'"),
        ("resnet8:freeze=[layer9]", "has no layer 'layer9' to freeze: it has stem, stage1, stage2, stage3, head"),
        ("mlp:freeze=[extractor,head]", "has nothing left to train: freeze fewer layers"),
        ("cnn:width", "cannot read the model 'cnn:width': write name:key=value"),
        ("cnn:width=wide", r"model 'cnn:width=wide' cannot be built with these sizes"),
        ("resnet81:norm=group", "unknown model 'resnet81"),
    ],
)
def test_wrong_settings_are_named(name: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence.replace("(", r"\(")):
        build_model(name, IMAGE, 4)


def test_one_name_for_one_model() -> None:
    assert model_name("cnn-bn:width=4,norm=group") == model_name({"name": "cnn-bn", "norm": "group", "width": 4})
    assert "cnn-bn:norm=group" in models
    assert "cnn-bx:norm=group" not in models
    ways = [
        {"method": "fedavg", "model": {"name": "cnn-bn", "norm": "group"}},
        override({"method": "fedavg", "model": "cnn-bn"}, ["model.norm=group"]),
        override({"method": "fedavg", "model": "cnn-bn"}, ["norm=group"]),
    ]
    assert {make_experiment(given).model for given in ways} == {"cnn-bn:norm=group"}
    with pytest.raises(InputError, match=r"needs the name of the model too"):
        override({"method": "fedavg"}, ["norm=group"])


def test_frozen_layers_keep_their_bits_in_a_federation(tmp_path: Path) -> None:
    made = fedstill.run(
        "scaffold", model="cnn-bn:freeze=[extractor],norm=group", rounds=2, clients=2, batch=64, epochs=1, out=tmp_path
    )
    plan = make_plan(made.experiment)
    first, last = part(plan.method.start(plan.streams), "model/"), state_of(made.model())
    frozen = [name for name in last if name.startswith("parameters/extractor.")]
    assert frozen
    assert all(torch.equal(first[name], last[name]) for name in frozen)
    assert not torch.equal(first["parameters/head.1.weight"], last["parameters/head.1.weight"])
