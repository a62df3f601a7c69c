"""3DETR and 3DETR-m: equal to plain torch, forward and gradients, and of the published size."""

from __future__ import annotations

import math

import pytest
import torch
from benchmarks.reference_detector import ReferenceDetector
from torch import Tensor, nn

from fedstill.core.errors import InputError
from fedstill.core.kinds import PARAMETERS, state_of
from fedstill.core.streams import Streams
from fedstill.detection.detection_losses import detection_losses
from fedstill.detection.model import PublishedDetector, part_of
from fedstill.detection.model.attention import EncoderLayer
from fedstill.detection.model.masked_autoencoder import MaskedAutoencoder
from fedstill.models import build_model
from fedstill.models.portable.written_out import PortableLevel

SMALL = {
    "width": 16,
    "heads": 2,
    "encoder_layers": 3,
    "decoder_layers": 2,
    "feedforward": 8,
    "decoder_feedforward": 12,
    "tokens": 40,
    "radius": 0.5,
    "neighbours": 8,
    "queries": 6,
    "prompts": 3,
    "dropout": 0.0,
    "head_dropout": 0.0,
}


def small(name: str, **changes: float) -> PublishedDetector:
    with Streams(1).ambient("initialise"):
        model = build_model(name, (200, 3), 4, **{**SMALL, **changes})
    assert isinstance(model, PublishedDetector)
    return model


@pytest.fixture
def scenes() -> Tensor:
    """On a grid, so that distances are exact, and no neighbour depends on how they are computed."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 96, (2, 200, 3), generator=generator) / 32


def test_sizes_are_the_published_ones() -> None:
    """Misra et al. have 7.3 and 7.4 million parameters, with three encoder layers.

    By hand, for SUN RGB-D: set abstraction 42,048, three encoder layers 990,336, projection 198,144, queries 131,584,
    eight decoder layers and their norm 5,276,160, five heads 671,017; a masked encoder has a second set abstraction,
    198,912, and one layer fewer in its projection, -66,048. Ours has prompts, and biases before BatchNorm in addition;
    where boxes are axis-aligned there are no heads for angles.
    """
    plain, masked = 7_309_289, 7_309_289 + 198_912 - 66_048
    biases, prompts = 64 + 128 + 256, 3 * 2 * 10 * 256
    assert count("detr3d-turned", 10, encoder_layers=3) == plain + biases + prompts
    assert count("detr3d-m-turned", 10) == masked + biases + 3 * 256 + prompts
    angles = 2 * (2 * (256 * 256 + 512) + 257)
    scannet = 19 * 257 - 11 * 257 - 2 * 11 * 257 - angles
    assert count("detr3d", 18, encoder_layers=3) == plain + scannet + biases + prompts
    assert count("detr3d-m", 18) == masked + scannet + biases + 3 * 256 + prompts
    assert round(plain / 1e6, 1) == 7.3
    assert round(masked / 1e6, 1) == 7.4


def count(name: str, classes: int, **sizes: float) -> int:
    return sum(parameter.numel() for parameter in build_model(name, (2048, 3), classes, **sizes).parameters())


@pytest.mark.parametrize("name", ["detr3d", "detr3d-m"])
@pytest.mark.parametrize("training", [True, False])
def test_it_equals_plain_torch(name: str, training: bool, scenes: Tensor) -> None:
    ours = small(name)
    theirs = ReferenceDetector(ours)
    if not training:  # statistics that are not the initial ones
        for model in (ours, theirs):
            model.train()(scenes)
    one, other = (model.train(training)(scenes) for model in (ours, theirs))
    for mine, plain in zip(one.layers, other.layers, strict=True):
        torch.testing.assert_close(mine.boxes, plain.boxes, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(mine.log_probabilities, plain.log_probabilities, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(one.features, other.features, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["detr3d", "detr3d-m"])
def test_gradients_equal_those_of_plain_torch(name: str, scenes: Tensor) -> None:
    ours = small(name)
    theirs = ReferenceDetector(ours)
    labels, boxes = torch.tensor([[0, 2], [1, -1]]), torch.zeros(2, 2, 7)
    boxes[..., :3], boxes[..., 3:6] = scenes[:, :2], 0.8
    for model in (ours, theirs):
        terms = detection_losses(model.train()(scenes), labels, boxes).terms()
        assert terms["tokens"] == 0
        torch.stack(list(terms.values())).sum().backward()
    pairs = {
        "prompts": (ours.prompts, theirs.prompts),
        "first": (ours.tokens.level.linear1.weight, theirs.tokens.convolutions[0].weight),
        "norm": (ours.tokens.level.norm3.weight, theirs.tokens.norms[2].weight),
        "encoder": (ours.encoder[0].feedforward[0].weight, theirs.encoder[0]["feedforward"][0].weight),
        "query": (ours.encoder[1].attention.query.weight, theirs.encoder[1]["attention"].weight[:16]),
        "projection": (ours.projection[0].linear.weight, theirs.projection.layers[0].weight),
        "decoder": (ours.decoder[0].across.out.weight, theirs.decoder[0]["across"].out.weight),
        "head": (ours.heads["sizes"][2].weight, theirs.heads["sizes"].layers[-1].weight),
    }
    packed = theirs.encoder[1]["attention"].weight.grad
    for what, (mine, plain) in pairs.items():
        expected = packed[:16] if what == "query" else plain.grad
        scale = float(expected.abs().max())
        assert scale > 0, what
        torch.testing.assert_close(mine.grad, expected.reshape(mine.shape), rtol=1e-3, atol=1e-4 * scale, msg=what)


def test_a_layer_equals_torch_s_own(scenes: Tensor) -> None:
    """Without prompts the encoder's layer is that of `nn.TransformerEncoderLayer`, normalised first."""
    layer = EncoderLayer(16, 2, 8, 0.0)
    theirs = nn.TransformerEncoderLayer(16, 2, 8, 0.0, batch_first=True, norm_first=True)
    own, packed = layer.attention, theirs.self_attn
    with torch.no_grad():
        packed.in_proj_weight.copy_(torch.cat([own.query.weight, own.key.weight, own.value.weight]))
        packed.in_proj_bias.copy_(torch.cat([own.query.bias, own.key.bias, own.value.bias]))
    packed.out_proj.load_state_dict(own.out.state_dict())
    theirs.linear1.load_state_dict(layer.feedforward[0].state_dict())
    theirs.linear2.load_state_dict(layer.feedforward[3].state_dict())
    rows = torch.randn(2, 9, 16)
    torch.testing.assert_close(layer(rows, None), theirs(rows), rtol=1e-4, atol=1e-5)
    near = torch.cdist(scenes[:, :9], scenes[:, :9]) < 1.5
    blocked = (~near).repeat_interleave(2, dim=0)
    torch.testing.assert_close(layer(rows, None, near), theirs(rows, src_mask=blocked), rtol=1e-4, atol=1e-5)


def test_a_masked_token_sees_its_neighbours_and_the_prompts_only() -> None:
    layer, tokens = EncoderLayer(16, 2, 8, 0.0), torch.randn(1, 3, 16)
    near = torch.tensor([[[True, True, False], [True, True, False], [False, False, True]]])
    prompts = torch.randn(2, 2, 3, 8)
    moved = tokens.clone()
    moved[0, 2] += 1
    before, after = layer(tokens, prompts, near), layer(moved, prompts, near)
    assert torch.equal(before[0, :2], after[0, :2])
    assert not torch.allclose(before, layer(tokens, prompts + 1, near))


def test_boxes_lie_by_their_queries_and_in_the_scene(scenes: Tensor) -> None:
    model = small("detr3d")
    with torch.no_grad():
        for name in ("offsets", "sizes"):
            model.heads[name][2].weight.mul_(1e3)
    said = model.eval()(scenes)
    boxes = said.layers[-1].boxes
    places = scenes[:, :1]  # sampling starts at the first point
    assert ((boxes[:, :1, :3] - places).abs() <= 0.5).all()
    assert (boxes[..., 3:6] <= said.extent.unsqueeze(1) + 1e-6).all()
    assert (boxes[..., 6] == 0).all()


def test_coordinates_are_in_units_of_the_radius(scenes: Tensor) -> None:
    """A scene of twice the size, with twice the radius, has the same tokens."""
    model, twice = small("detr3d").eval(), small("detr3d", radius=1.0).eval()
    one, other = model.tokens(scenes), twice.tokens(2 * scenes)
    assert torch.equal(2 * one[0], other[0])
    torch.testing.assert_close(one[1], other[1])


def test_an_exported_level_has_the_same_units(scenes: Tensor) -> None:
    level, centres = small("detr3d").eval().tokens.level, scenes[:, :5]
    distances = (centres.unsqueeze(2) - scenes.unsqueeze(1)).square().sum(dim=-1)
    with torch.no_grad():
        expected = level(scenes, centres, None)
        torch.testing.assert_close(PortableLevel(level)(scenes, centres, distances.transpose(0, 1), None), expected)


def test_what_is_frozen_and_what_travels() -> None:
    model = small("detr3d-m-turned")
    owners = {name: part_of(name) for name in state_of(model)}
    assert owners["buffers/downsampling.norm1.running_mean"] == owners["parameters/tokens.level.linear1.weight"]
    assert owners["buffers/downsampling.norm1.running_mean"] == "encoder"
    assert owners["buffers/heads.sizes.0.norm.running_mean"] == owners["parameters/projection.0.linear.weight"]
    assert owners["buffers/heads.sizes.0.norm.running_mean"] == "heads"
    slow = {id(parameter) for parameter in model.slow_parameters()}
    model.freeze_encoder()
    model.train()
    for name, parameter in model.named_parameters():
        frozen = owners[PARAMETERS + name] == "encoder"
        assert (id(parameter) in slow) == frozen == (not parameter.requires_grad)
    assert not model.downsampling.norm1.training
    assert model.heads["sizes"][0].norm.training


def test_attention_begins_as_in_the_public_code() -> None:
    """One matrix for queries, keys and values, of Xavier's bound for (3 width, width)."""
    attention = small("detr3d", width=64).encoder[0].attention
    bound = math.sqrt(6 / (64 + 3 * 64))
    assert 0.97 * bound < float(attention.key.weight.abs().max()) <= bound
    assert float(attention.out.weight.abs().max()) > 1.2 * bound
    assert not attention.key.bias.any()


def test_sizes_that_cannot_be() -> None:
    with pytest.raises(InputError, match="6 of 5 cannot be"):
        small("detr3d", tokens=5)
    with pytest.raises(InputError, match="leave floor and candidates at 0"):
        small("detr3d", candidates=9)
    with pytest.raises(InputError, match="16 cannot be shared out between 3 heads"):
        small("detr3d", heads=3)


def test_patches_are_masked_in_an_encoder_of_all_tokens_only(scenes: Tensor) -> None:
    found = MaskedAutoencoder(small("detr3d"))(scenes, torch.rand(2, 40))
    found.distance().backward()
    with pytest.raises(InputError, match="choose kind=supervised"):
        MaskedAutoencoder(small("detr3d-m"))
