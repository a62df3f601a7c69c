"""The detector as a whole: shapes, what moves with a scene, what is frozen, what is shared by all."""

from __future__ import annotations

import math
from copy import deepcopy

import pytest
import torch
from torch import Tensor

from fedstill.core.errors import InputError
from fedstill.core.kinds import PARAMETERS, state_of
from fedstill.core.streams import Streams
from fedstill.detection.model import Detector, part_of
from fedstill.detection.model.detector import chosen_tokens, headings
from fedstill.models import build_model, duplicate, models

NAMES = (
    "detr3d",
    "detr3d-m",
    "detr3d-m-turned",
    "detr3d-turned",
    "detr3d-lite",
    "detr3d-lite-turned",
    "small-detr3d-lite",
)
TINY = {
    "width": 16,
    "heads": 2,
    "feedforward": 24,
    "encoder_layers": 2,
    "tokens": 20,
    "neighbours": 8,
    "queries": 5,
    "candidates": 9,
    "prompts": 3,
}


def tiny(seed: int = 0, classes: int = 4, **sizes: float) -> Detector:
    with Streams(seed).ambient("initialise"):
        model = build_model("detr3d-lite", (300, 3), classes, **{**TINY, **sizes})
    assert isinstance(model, Detector)
    return model


def shares(name: str) -> dict[str, float]:
    """Of a model's parameters, by part."""
    counts = {"encoder": 0, "prompts": 0, "heads": 0}
    for path, tensor in state_of(build_model(name, (2048, 3), 10)).items():
        if path.startswith(PARAMETERS):
            counts[part_of(path)] += tensor.numel()
    return {part: count / sum(counts.values()) for part, count in counts.items()}


def test_the_catalogue_knows_what_they_need() -> None:
    for name in NAMES:
        builder = models[name]
        assert builder.task == "detection"  # type: ignore[attr-defined]
        assert builder.defaults["augmentation"] == "scenes"  # type: ignore[attr-defined]
        assert models.summary(name).endswith(".")
    assert models["detr3d-lite"].points == 2048  # type: ignore[attr-defined]


@pytest.mark.parametrize(("name", "bins"), [("detr3d-lite", 0), ("detr3d-lite-turned", 12)])
def test_only_those_for_turned_boxes_tellheadings(name: str, bins: int, rooms: Tensor) -> None:
    """By which the loss knows whose weights to take: ScanNet's, or SUN RGB-D's."""
    said = build_model(name, (300, 3), 4, **TINY)(rooms)
    assert said.layers[0].bin_logits.shape[-1] == bins


def test_shapes(rooms: Tensor) -> None:
    said = tiny(angle_bins=6)(rooms)
    assert len(said.layers) == 2
    for layer in said.layers:
        assert layer.log_probabilities.shape == (3, 5, 5)
        assert layer.boxes.shape == (3, 5, 7)
        assert layer.bin_logits.shape == layer.bin_residuals.shape == (3, 5, 6)
        torch.testing.assert_close(layer.log_probabilities.exp().sum(-1), torch.ones(3, 5))
        assert (layer.boxes[..., 3:6] > 0).all()
    assert said.queries.shape == (3, 5, 16)
    assert said.features.shape == (3, 16)
    assert said.tokens.positions.shape == said.tokens.votes.shape == (3, 20, 3)
    assert said.tokens.objectness.shape == (3, 20)
    assert said.tokens.log_probabilities.shape == (3, 20, 4)
    torch.testing.assert_close(said.extent, rooms.amax(1) - rooms.amin(1))


def test_features_are_the_mean_encoder_token(rooms: Tensor) -> None:
    model = tiny().eval()
    low = rooms.amin(1)
    positions, encoded = model.encode(rooms, low, rooms.amax(1) - low)
    assert torch.equal(model(rooms).features, encoded.mean(1))
    assert torch.equal(model(rooms).tokens.positions, positions)


def test_without_angle_bins_every_heading_is_exactly_zero(rooms: Tensor) -> None:
    said = tiny()(rooms)
    assert all((layer.boxes[..., 6] == 0).all() for layer in said.layers)
    assert said.layers[0].bin_logits.shape == (3, 5, 0)


def test_boxes_move_with_the_scene(rooms: Tensor) -> None:
    """Nothing is said of where the origin is: a scene elsewhere has its boxes there."""
    model, shift = tiny().eval(), torch.tensor([8.0, -4.0, 2.0])
    here, there = model(rooms), model(rooms + shift)
    torch.testing.assert_close(
        here.layers[-1].boxes[..., :3] + shift, there.layers[-1].boxes[..., :3], rtol=0, atol=1e-4
    )
    torch.testing.assert_close(here.layers[-1].boxes[..., 3:], there.layers[-1].boxes[..., 3:], rtol=0, atol=1e-4)
    torch.testing.assert_close(here.layers[-1].log_probabilities, there.layers[-1].log_probabilities, rtol=0, atol=1e-4)


def test_scenes_of_a_batch_do_not_see_each_other_in_evaluation(rooms: Tensor) -> None:
    model = tiny().eval()
    torch.testing.assert_close(model(rooms).layers[-1].boxes[1:2], model(rooms[1:2]).layers[-1].boxes)


def test_every_part_of_the_state_has_an_owner() -> None:
    model = tiny()
    owners = {name: part_of(name) for name in state_of(model)}
    assert owners["parameters/prompts"] == "prompts"
    assert [name for name, part in owners.items() if part == "prompts"] == ["parameters/prompts"]
    assert owners["buffers/fourier"] == owners["counters/tokens.level.norm1.num_batches_tracked"] == "encoder"
    assert owners["parameters/encoder.1.attention.query.weight"] == "encoder"
    assert owners["parameters/decoder.0.among.query.weight"] == owners["parameters/box_head.0.weight"] == "heads"
    assert owners["parameters/projection.1.weight"] == owners["parameters/token_head.0.bias"] == "heads"
    slow = {id(parameter) for parameter in model.slow_parameters()}
    for name, parameter in model.named_parameters():
        assert (id(parameter) in slow) == (owners[PARAMETERS + name] == "encoder")


def test_what_travels_is_a_part_of_the_lite_model() -> None:
    found = shares("detr3d-lite")
    assert found["prompts"] < 0.02
    assert found["prompts"] + found["heads"] <= 0.6


def test_the_shape_of_prompts() -> None:
    assert build_model("detr3d-lite", (2048, 3), 10).get_parameter("prompts").shape == (3, 2, 4, 10, 16)


def test_prompts_are_used(rooms: Tensor) -> None:
    model = tiny().eval()
    before = model(rooms).features
    with torch.no_grad():
        model.prompts.add_(1.0)
    assert not torch.allclose(before, model(rooms).features, atol=1e-3)


def test_frequencies_are_the_same_for_everybody() -> None:
    one, other = tiny(seed=0), tiny(seed=1, classes=7)
    assert torch.equal(one.fourier, other.fourier)
    assert one.fourier.abs().sum() > 0
    assert not torch.equal(one.prompts, other.prompts)


def test_weights_come_from_the_ambient_generator_alone() -> None:
    one, again, other = (state_of(tiny(seed)) for seed in (0, 0, 1))
    assert all(torch.equal(one[name], again[name]) for name in one)
    wide = [name for name, tensor in one.items() if tensor.dim() > 1 and name != "buffers/fourier"]
    assert wide
    assert all(not torch.equal(one[name], other[name]) for name in wide)


def test_a_frozen_encoder_stays_as_it_is(rooms: Tensor) -> None:
    model = tiny()
    model(rooms)  # statistics of BatchNorm that are not those of a fresh model
    model.freeze_encoder()
    for twin in (model, deepcopy(model), duplicate(model)):
        assert isinstance(twin, Detector)
        twin.train()
        before = state_of(twin)
        assert not any(parameter.requires_grad for parameter in twin.slow_parameters())
        said = twin(rooms)
        sum(layer.boxes.sum() + layer.log_probabilities.square().sum() for layer in said.layers).backward()  # type: ignore[union-attr]
        with torch.no_grad():
            for parameter in twin.parameters():
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad)
        changed = {part_of(name) for name, tensor in state_of(twin).items() if not torch.equal(tensor, before[name])}
        assert changed == {"prompts", "heads"}


def test_an_encoder_that_is_not_frozen_counts(rooms: Tensor) -> None:
    model = tiny()
    model(rooms)
    assert state_of(model)["counters/tokens.level.norm1.num_batches_tracked"] == 1


def test_evaluation_changes_nothing_and_draws_nothing(rooms: Tensor) -> None:
    model = tiny(dropout=0.3).eval()
    before, generator = state_of(model), torch.default_generator.get_state()
    one, two = model(rooms), model(rooms.clone())
    assert torch.equal(one.layers[-1].boxes, two.layers[-1].boxes)
    assert torch.equal(generator, torch.default_generator.get_state())
    assert all(torch.equal(tensor, before[name]) for name, tensor in state_of(model).items())


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 1e30], ids=["nan", "infinite", "huge"])
def test_weights_that_are_no_numbers_any_more_do_not_stop_anything(value: float, rooms: Tensor) -> None:
    model = tiny().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)
    assert model(rooms).layers[-1].boxes.shape == (3, 5, 7)


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"heads": 3}, "a width of 16 cannot be shared out between 3 heads"),
        ({"queries": 10}, "10 of 9 of 20 cannot be"),
        ({"candidates": 21}, "5 of 21 of 20 cannot be"),
        ({"prompts": 0}, "at least one layer of each kind"),
        ({"widht": 8}, "no size called 'widht': did you mean 'width'"),
    ],
    ids=["heads", "queries", "candidates", "prompts", "name"],
)
def test_sizes_that_cannot_be_are_one_sentence(sizes: dict[str, float], words: str) -> None:
    with pytest.raises(InputError, match=words):
        tiny(**sizes)


@pytest.mark.parametrize("shape", [(3, 32, 32), (300, 2), (300, 5), (0, 3)])
def test_images_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=r"cannot read inputs of shape .* point clouds"):
        build_model("detr3d-lite", shape, 4)


def test_clouds_with_holes_in_their_numbers_are_refused(rooms: Tensor) -> None:
    broken = rooms.clone()
    broken[1, 5, 0] = torch.nan
    with pytest.raises(InputError, match="cloud 1 of the batch"):
        tiny()(broken)


def test_queries_are_far_apart_among_the_most_object_like() -> None:
    """The three likeliest tokens are 3, 1 and 4. From the likeliest, at 0, the farthest is 4, at 9; 1 lies next to 3.

    Token 0 votes for a place farther away, but is not object-like.
    """
    objectness = torch.tensor([[-5.0, 2.0, -4.0, 3.0, 1.0]])
    votes = torch.zeros(1, 5, 3)
    votes[0, :, 0] = torch.tensor([50.0, 0.5, 40.0, 0.0, 9.0])
    assert chosen_tokens(objectness, votes, candidates=3, queries=2).tolist() == [[3, 4]]
    assert chosen_tokens(objectness, votes, candidates=5, queries=2).tolist() == [[3, 0]]


def test_votes_that_are_no_numbers_are_somewhere() -> None:
    votes = torch.tensor([[[math.nan, 0, 0], [math.inf, 0, 0], [1.0, 0, 0]]])
    chosen = chosen_tokens(torch.tensor([[0.0, math.nan, 1.0]]), votes, candidates=3, queries=3)
    assert sorted(chosen[0].tolist()) == [0, 1, 2]
    assert chosen[0, 0] == 2


def testheadings_from_bins() -> None:
    """Of four bins the third is around pi, half a bin being pi/4: pi + 0.5 * pi/4 is -7/8 pi; the first -0.2 * pi/4."""
    logits = torch.tensor([[0.0, 0.0, 3.0, 0.0], [3.0, 0.0, 0.0, 0.0]])
    residuals = torch.tensor([[9.0, 9.0, 0.5, 9.0], [-0.2, 9.0, 9.0, 9.0]])
    expected = torch.tensor([[-7 / 8 * math.pi], [-0.05 * math.pi]])
    torch.testing.assert_close(headings(logits, residuals), expected)
