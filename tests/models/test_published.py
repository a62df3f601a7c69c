"""Models for large images: the published numbers of parameters, the public names, and weight files under them."""

from __future__ import annotations

from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

import fedstill
from fedstill.core.errors import InputError
from fedstill.core.kinds import state_of
from fedstill.models import build_model, models
from fedstill.runtime.assemble import make_experiment
from fedstill.runtime.initial_weights import with_initial

# With 1,000 classes at 224 pixels: parameters, and some of the public names with their shapes.
PUBLISHED: dict[str, tuple[int, dict[str, tuple[int, ...]]]] = {
    "resnet18-imagenet": (
        11_689_512,
        {
            "conv1.weight": (64, 3, 7, 7),
            "bn1.running_mean": (64,),
            "layer1.0.conv1.weight": (64, 64, 3, 3),
            "layer2.0.downsample.0.weight": (128, 64, 1, 1),
            "layer2.0.downsample.1.bias": (128,),
            "layer4.1.bn2.num_batches_tracked": (),
            "fc.weight": (1000, 512),
        },
    ),
    "resnet50-imagenet": (
        25_557_032,
        {
            "layer1.0.downsample.0.weight": (256, 64, 1, 1),
            "layer3.5.conv3.weight": (1024, 256, 1, 1),
            "layer4.2.bn3.running_var": (2048,),
            "fc.bias": (1000,),
        },
    ),
    "mobilenetv3-small": (
        2_542_856,
        {
            "features.0.0.weight": (16, 3, 3, 3),
            "features.1.block.0.0.weight": (16, 1, 3, 3),
            "features.1.block.1.fc1.weight": (8, 16, 1, 1),
            "features.1.block.2.0.weight": (16, 16, 1, 1),
            "features.4.block.2.fc2.bias": (96,),
            "features.12.0.weight": (576, 96, 1, 1),
            "classifier.0.weight": (1024, 576),
            "classifier.3.weight": (1000, 1024),
        },
    ),
    "vit-tiny": (
        5_717_416,
        {
            "cls_token": (1, 1, 192),
            "pos_embed": (1, 197, 192),
            "patch_embed.proj.weight": (192, 3, 16, 16),
            "blocks.11.attn.qkv.weight": (576, 192),
            "blocks.0.mlp.fc2.bias": (192,),
            "norm.weight": (192,),
            "head.weight": (1000, 192),
        },
    ),
}


def public_file(model: nn.Module, name: str) -> dict[str, Tensor]:
    """The state of a model under the public names, as a file of a model zoo has it."""
    head = getattr(models[name], "public_head")  # noqa: B009
    state = model.state_dict()
    named = {f"{head}.{key[5:]}" if key.startswith("head.") else key.removeprefix("extractor."): key for key in state}
    return {public: state[key].clone() for public, key in named.items()}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_numbers_of_parameters_and_names(name: str) -> None:
    with torch.device("meta"):
        model = build_model(name, (3, 224, 224), 1000)
    parameters, names = PUBLISHED[name]
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    held = public_file(model, name)
    assert {key: tuple(held[key].shape) for key in names} == names


@pytest.mark.parametrize("name", ["resnet18-imagenet", "mobilenetv3-small", "vit-tiny:depth=2"])
def test_a_public_file_is_read_and_its_head_replaced(name: str, tmp_path: Path) -> None:
    torch.manual_seed(3)
    there = build_model(name, (3, 32, 32), 12)
    file = tmp_path / "public.safetensors"
    held = {
        key: tensor.half() if tensor.is_floating_point() else tensor for key, tensor in public_file(there, name).items()
    }
    safetensors.torch.save_file(held, file)
    experiment = make_experiment({"method": "fedavg", "model": name, "initial": {"file": str(file)}})
    known, same = with_initial(experiment, (3, 32, 32), 12)
    _, other = with_initial(experiment, (3, 32, 32), 4)
    theirs = state_of(there)
    assert same.keys() == theirs.keys()
    assert same.keys() - other.keys() == {"parameters/head.weight", "parameters/head.bias"}
    assert all(torch.equal(same[key], theirs[key].half().to(theirs[key].dtype)) for key in same)
    assert known.initial is not None
    assert known.initial.sha256 is not None


def test_places_of_patches_are_interpolated_to_another_size(tmp_path: Path) -> None:
    there = build_model("vit-tiny:depth=1", (3, 64, 64), 4)
    file = tmp_path / "vit.safetensors"
    places = torch.cat([torch.full((1, 1, 192), 7.0), torch.full((1, 16, 192), 0.5)], dim=1)
    safetensors.torch.save_file({**public_file(there, "vit-tiny"), "pos_embed": places}, file)
    experiment = make_experiment({"method": "fedavg", "model": "vit-tiny:depth=1", "initial": {"file": str(file)}})
    _, read = with_initial(experiment, (3, 96, 96), 4)
    found = read["parameters/extractor.pos_embed"]
    assert found.shape == (1, 37, 192)
    assert (found[:, 0] == 7).all()
    torch.testing.assert_close(found[:, 1:], torch.full((1, 36, 192), 0.5))


@pytest.mark.parametrize(
    ("model", "change", "sentence"),
    [
        ("resnet50-imagenet", {}, "lacks|do not fit"),
        (
            "resnet18-imagenet:norm=group",
            {},
            "are of a model with BatchNorm, and resnet18-imagenet:norm=group has none",
        ),
        ("resnet18-imagenet", {"layer1.0.conv1.weight": None}, "lacks 'extractor.layer1.0.conv1.weight'"),
        ("resnet18-imagenet", {"stem.weight": torch.zeros(2)}, "it has no 'stem.weight'"),
        (
            "resnet18-imagenet",
            {"conv1.weight": torch.zeros(64, 1, 7, 7)},
            "is 64x1x7x7, not 64x3x7x7; set data.channels=1",
        ),
        (
            "resnet18-imagenet",
            {"bn1.running_mean": None, "bn1.running_var": None},
            "lacks the running statistics of BatchNorm, such as 'extractor.bn1.running_mean'.*norm=group",
        ),
        ("resnet18-imagenet", {"bn1.bias": torch.full((64,), torch.nan)}, "NaN or infinity in .*bn1.bias"),
    ],
)
def test_files_that_do_not_fit(model: str, change: dict[str, Tensor | None], sentence: str, tmp_path: Path) -> None:
    held = {**public_file(build_model("resnet18-imagenet", (3, 16, 16), 4), "resnet18-imagenet"), **change}
    file = tmp_path / "public.safetensors"
    safetensors.torch.save_file({name: tensor for name, tensor in held.items() if tensor is not None}, file)
    experiment = make_experiment({"method": "fedavg", "model": model, "initial": {"file": str(file)}})
    with pytest.raises(InputError, match=sentence):
        with_initial(experiment, (3, 16, 16), 4)


def test_names_behind_the_prefix_of_a_wrapper_and_a_transformer_of_other_patches(tmp_path: Path) -> None:
    held, file = build_model("vit-tiny:depth=1,patch=16", (3, 32, 32), 4), tmp_path / "public.safetensors"
    named = {f"module.{name}": tensor for name, tensor in public_file(held, "vit-tiny").items()}
    safetensors.torch.save_file(named, file)
    for model, fits in (("vit-tiny:depth=1,patch=16", True), ("vit-tiny:depth=1", False)):
        experiment = make_experiment({"method": "fedavg", "model": model, "initial": {"file": str(file)}})
        if fits:
            assert "parameters/extractor.cls_token" in with_initial(experiment, (3, 32, 32), 4)[1]
            continue
        with pytest.raises(InputError, match="192x3x16x16, not 192x3x8x8; of a transformer, set patch=16"):
            with_initial(experiment, (3, 32, 32), 4)


def test_transformers_refuse_odd_sizes() -> None:
    with pytest.raises(InputError, match=r"images whose sides are multiples of 16 pixels \(patch=16\)"):
        build_model("vit-tiny:patch=16", (3, 28, 28), 10)
    assert build_model("vit-tiny:patch=4,depth=1", (3, 28, 28), 10) is not None


def test_attention_against_a_plain_computation() -> None:
    from fedstill.models.vision_transformer import SelfAttention

    torch.manual_seed(0)
    layer, x = SelfAttention(12, 3), torch.randn(2, 5, 12)
    mapped = layer.qkv(x)
    expected = torch.empty(2, 5, 12)
    for sample in range(2):
        for head in range(3):
            place = slice(4 * head, 4 * head + 4)
            q, k, v = (mapped[sample, :, 12 * which :][:, place] for which in range(3))
            expected[sample, :, place] = torch.softmax(q @ k.T / 2.0, dim=1) @ v
    torch.testing.assert_close(layer(x), layer.proj(expected))


def test_a_federation_from_public_weights_is_distilled(tmp_path: Path) -> None:
    """One round with frozen layers from a file, and a student of the result."""
    torch.manual_seed(0)
    file = tmp_path / "public.safetensors"
    there = build_model("mobilenetv3-small", (3, 32, 32), 5)
    safetensors.torch.save_file(public_file(there, "mobilenetv3-small"), file)
    common = {"data": "digits[:10%],size=32,channels=3", "batch": 64, "out": tmp_path / "runs"}
    made = fedstill.run(
        "fedavg",
        model="mobilenetv3-small:freeze=[features]",
        initial={"file": str(file)},
        clients=2,
        rounds=1,
        epochs=1,
        **common,
    )
    kept, began = state_of(made.model()), state_of(there)
    assert torch.equal(
        kept["parameters/extractor.features.0.0.weight"], began["parameters/extractor.features.0.0.weight"]
    )
    assert not torch.equal(kept["parameters/head.weight"], began["parameters/head.weight"][:1].expand(10, -1))
    student = fedstill.distill(made, "cnn", "vanilla", rounds=1, **common)
    assert student.result.teachers[0].model == "mobilenetv3-small:freeze=[features]"
