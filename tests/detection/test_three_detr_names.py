"""The encoders of 3DETR's public code: names, numbers of parameters, and the same outputs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from fedstill.core.errors import InputError
from fedstill.core.kinds import load_state, state_of
from fedstill.detection.imported_weights import Imported, read_weights
from fedstill.detection.model import Detector, part_of
from fedstill.models import build_model

LEVEL_BIASES = ("level.linear1.bias", "level.linear2.bias", "level.linear3.bias", "downsampling.linear1.bias")
LEVEL_BIASES += ("downsampling.linear2.bias", "downsampling.linear3.bias")
LAYERS = {"detr3d": 6, "detr3d-m": 3, "detr3d-turned": 6, "detr3d-m-turned": 3}


def level(start: str, inputs: int, widths: tuple[int, ...]) -> dict[str, Tensor]:
    """One set abstraction as the public code names it: convolutions without bias, BatchNorm in a box of its own."""
    state = {}
    for number, width in enumerate(widths):
        layer = f"{start}.mlp_module.layer{number}"
        state[f"{layer}.conv.weight"] = torch.randn(width, inputs, 1, 1) / inputs**0.5
        norm = {"weight": torch.rand(width) + 0.5, "bias": torch.randn(width)}
        norm |= {"running_mean": torch.randn(width), "running_var": torch.rand(width) + 0.5}
        state |= {f"{layer}.bn.bn.{name}": tensor for name, tensor in norm.items()}
        state[f"{layer}.bn.bn.num_batches_tracked"] = torch.tensor(7)
        inputs = width
    return state


def public_state(layers: int, masked: bool, colours: int = 0) -> dict[str, Tensor]:
    """A state with the names and shapes of 3DETR's: the encoder, the frequencies, and a head."""
    state = level("pre_encoder", 3 + colours, (64, 128, 256))
    for number in range(layers):
        attention = nn.MultiheadAttention(256, 4)
        nn.init.normal_(attention.in_proj_bias)
        parts = {"self_attn": attention, "linear1": nn.Linear(256, 128), "linear2": nn.Linear(128, 256)}
        parts |= {"norm1": nn.LayerNorm(256), "norm2": nn.LayerNorm(256)}
        for name, part in parts.items():
            state |= {f"encoder.layers.{number}.{name}.{key}": one.detach() for key, one in part.state_dict().items()}
    if masked:
        state |= level("encoder.interim_downsampling", 259, (256, 256, 256))
    state["pos_embedding.gauss_B"] = torch.randn(3, 128)
    state["mlp_heads.sem_cls_head.layers.0.weight"] = torch.randn(256, 256, 1)
    return state


def detector(model: str, columns: int = 3, **sizes: int) -> Detector:
    built = build_model(model, (500, columns), 10, tokens=32, queries=8, **sizes)
    assert isinstance(built, Detector)
    return built


def encoder_of(built: Detector) -> dict[str, Tensor]:
    return {name: one for name, one in state_of(built).items() if part_of(name) == "encoder"}


def read(folder: Path, state: dict[str, Tensor], built: Detector, model: str) -> Imported:
    save_file({name: one.contiguous() for name, one in state.items()}, folder / "w.safetensors")
    return read_weights(folder / "w.safetensors", encoder_of(built), model)


@pytest.mark.parametrize("model", LAYERS)
def test_a_public_encoder_is_complete(tmp_path: Path, model: str) -> None:
    built, state = detector(model), public_state(LAYERS[model], "-m" in model)
    found = read(tmp_path, {f"module.{name}": one for name, one in state.items()}, built, model)
    assert found.missing == ()
    assert found.unused == ("mlp_heads.sem_cls_head.layers.0.weight",)
    assert set(found.tensors) == set(encoder_of(built))
    learnt = [one for name, one in state.items() if name.startswith(("pre_encoder", "encoder"))]
    learnt = [one for one in learnt if one.is_floating_point()]
    added = sum(one.numel() for name, one in found.tensors.items() if name.endswith(LEVEL_BIASES))
    theirs = sum(one.numel() for one in learnt) + 3 * 128
    ours = sum(one.numel() for one in found.tensors.values() if one.is_floating_point())
    assert ours == theirs + added
    assert added == 448 + (768 if "-m" in model else 0)


def test_the_encoder_computes_what_torch_computes_with_these_weights(tmp_path: Path) -> None:
    """Set abstraction by convolutions, layers by `nn.MultiheadAttention`, on one cloud."""
    built, state = detector("detr3d", encoder_layers=2).eval(), public_state(2, masked=False)
    load_state(built, {**state_of(built), **read(tmp_path, state, built, "detr3d").tensors})
    built.prompted = False
    points = torch.rand(1, 500, 3, generator=torch.Generator().manual_seed(0))
    low, extent = built.bounds(points)
    with torch.no_grad():
        positions, found = built.encode(points, low, extent)
        apart = torch.cdist(positions, points)[0]
        rows = []
        for centre, distances in zip(positions[0], apart, strict=True):
            near = (distances < 0.2).nonzero().flatten()[:64]
            x = ((points[0, near] - centre) / 0.2).t()[None, :, :, None]
            for number in range(3):
                layer = f"pre_encoder.mlp_module.layer{number}"
                x = nn.functional.conv2d(x, state[f"{layer}.conv.weight"])
                norm = [state[f"{layer}.bn.bn.{name}"] for name in ("running_mean", "running_var", "weight", "bias")]
                x = nn.functional.batch_norm(x, *norm, eps=1e-5).relu()
            rows.append(x.amax(dim=2).flatten())
        x = torch.stack(rows)[:, None]
        for number in range(2):
            x = plain_layer(state, f"encoder.layers.{number}.", x)
    torch.testing.assert_close(found[0], x[:, 0], rtol=1e-3, atol=1e-3)


def plain_layer(state: dict[str, Tensor], start: str, x: Tensor) -> Tensor:
    parts = {"self_attn": nn.MultiheadAttention(256, 4), "linear1": nn.Linear(256, 128), "linear2": nn.Linear(128, 256)}
    parts |= {"norm1": nn.LayerNorm(256), "norm2": nn.LayerNorm(256)}
    for name, part in parts.items():
        part.load_state_dict({key: state[f"{start}{name}.{key}"] for key in part.state_dict()})
    rows = parts["norm1"](x)
    x = x + parts["self_attn"](rows, rows, rows)[0]
    return x + parts["linear2"](parts["linear1"](parts["norm2"](x)).relu())


@pytest.mark.parametrize(
    ("given", "model", "columns", "sentence"),
    [
        pytest.param(public_state(3, masked=True), "detr3d", 3, None, id="3DETR-m for detr3d: layers are missing"),
        pytest.param(public_state(6, masked=False), "detr3d-lite", 3, "do not fit detr3d-lite", id="another width"),
        pytest.param(public_state(6, masked=False, colours=3), "detr3d", 3, "64x6 .* not 64x3", id="colours"),
    ],
)
def test_encoders_of_other_detectors(
    tmp_path: Path, given: dict[str, Tensor], model: str, columns: int, sentence: str | None
) -> None:
    built = detector(model, columns) if model == "detr3d" else build_model(model, (500, columns), 10)
    assert isinstance(built, Detector)
    if sentence is None:
        missing = read(tmp_path, given, built, model).missing
        assert {name.split("/")[1].split(".")[1] for name in missing} == {"3", "4", "5"}
    else:
        with pytest.raises(InputError, match=sentence):
            read(tmp_path, given, built, model)


def test_an_encoder_with_colours(tmp_path: Path) -> None:
    assert read(tmp_path, public_state(6, False, colours=3), detector("detr3d", 6), "detr3d").missing == ()
