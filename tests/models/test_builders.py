"""Models by name: outputs, initial weights, refusals; layer shapes and parameter counts derived by hand."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from math import prod

import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

from fedstill.core.errors import InputError
from fedstill.core.streams import Streams
from fedstill.models import Classifier, build_model, models

NAMES = [name for name in models.names() if not hasattr(models[name], "points")]  # those that read images, or signals
QUICK = [name for name in NAMES if name not in ("resnet18", "resnet50")]
IMAGES = [name for name in NAMES if name not in ("mlp", "cnn1d")]


def readable(name: str, channels: int, height: int, width: int) -> tuple[int, ...]:
    """The shape of an image, or of a signal with as many numbers."""
    return (channels, height * width) if name == "cnn1d" else (channels, height, width)


def test_the_models_of_the_catalogue() -> None:
    expected = {"mlp", "cnn", "cnn-bn", "resnet8", "resnet18", "resnet20", "resnet50", "wrn16-1", "wrn16-4"}
    assert expected <= set(NAMES)
    assert all(models.summary(name).endswith(".") for name in expected)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 32)], ids=["grey", "colour"])
@pytest.mark.parametrize("name", NAMES)
def test_outputs_of_a_batch_of_two(name: str, shape: tuple[int, int, int]) -> None:
    shape = readable(name, *shape)
    model = build_model(name, shape, 7)
    x = torch.rand(2, *shape)
    for mode in (True, False):
        log_probabilities, features = model.train(mode)(x)
        assert log_probabilities.shape == (2, 7)
        assert features.shape == (2, model.feature_size)
        torch.testing.assert_close(log_probabilities.exp().sum(1), torch.ones(2))


@pytest.mark.parametrize("name", QUICK)
def test_the_head_reads_exactly_the_features_that_are_returned(name: str) -> None:
    shape = readable(name, 1, 12, 12)
    model = build_model(name, shape, 5).eval()
    log_probabilities, features = model(torch.rand(2, *shape))
    assert torch.equal(log_probabilities, model.head(features).log_softmax(1))


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_learns(name: str) -> None:
    shape = readable(name, 3, 16, 16)
    model = build_model(name, shape, 4)
    F.nll_loss(model(torch.randn(4, *shape))[0], torch.arange(4)).backward()
    still = [path for path, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert still == []
    assert all(p.is_contiguous() and p.grad.is_contiguous() for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize("name", QUICK)
def test_evaluation_is_deterministic_and_changes_nothing(name: str) -> None:
    shape = readable(name, 1, 8, 8)
    model = build_model(name, shape, 3).eval()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    x = torch.rand(2, *shape)
    generator = torch.default_generator.get_state()
    first, second = model(x), model(x)
    assert torch.equal(generator, torch.default_generator.get_state())
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


@pytest.mark.parametrize("name", NAMES)
def test_initial_weights_come_from_the_ambient_generator_alone(name: str) -> None:
    def fresh(seed: int) -> dict[str, torch.Tensor]:
        with Streams(seed).ambient("initial"):
            return build_model(name, readable(name, 1, 8, 8), 3).state_dict()

    one, again, other = fresh(0), fresh(0), fresh(1)
    assert all(torch.equal(value, again[key]) for key, value in one.items())
    assert all(not torch.equal(value, other[key]) for key, value in one.items() if value.dim() > 1)


@pytest.mark.parametrize("name", IMAGES)
@pytest.mark.parametrize("shape", [(2048, 3), (1, 7, 28), (28, 28), (0, 28, 28), (64,)])
def test_a_shape_a_model_cannot_read_is_one_sentence(name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=f"model '{name}' cannot read inputs of shape .* at least 8x8 pixels"):
        build_model(name, shape, 10)


def test_a_perceptron_reads_vectors_and_images_but_not_points() -> None:
    assert build_model("mlp", (30,), 2)(torch.rand(2, 30))[1].shape == (2, 200)
    assert build_model("mlp", (1, 5, 5), 2)(torch.rand(2, 1, 5, 5))[1].shape == (2, 200)
    with pytest.raises(InputError, match="model 'mlp' cannot read inputs of shape 2048x3: it needs vectors"):
        build_model("mlp", (2048, 3), 4)


def test_bad_names_classes_and_sizes_are_one_sentence() -> None:
    with pytest.raises(InputError, match="unknown model 'resnet19': did you mean 'resnet18'"):
        build_model("resnet19", (3, 32, 32), 10)
    with pytest.raises(InputError, match="at least 2 classes to tell apart, not 1"):
        build_model("cnn", (1, 8, 8), 1)
    with pytest.raises(InputError, match="no size called 'widht': did you mean 'width'"):
        build_model("cnn", (1, 8, 8), 10, widht=4)
    with pytest.raises(InputError, match="norm is no size: write it behind the name, cnn:norm=group"):
        build_model("cnn", (1, 8, 8), 10, norm="group")  # type: ignore[arg-type]


def test_sizes_are_passed_on() -> None:
    model = build_model("cnn-bn", (1, 8, 8), 10, width=4, hidden=6, dropout=0.0)
    assert model.feature_size == 6
    assert [tuple(p.shape) for p in model.parameters() if p.dim() > 1] == [
        (4, 1, 3, 3),
        (8, 4, 3, 3),
        (6, 32),
        (10, 6),
    ]


def test_dropout_draws_in_training_and_batchnorm_counts() -> None:
    model = build_model("cnn-bn", (1, 8, 8), 10)
    x = torch.rand(4, 1, 8, 8)
    assert not torch.equal(model(x)[0], model(x)[0])
    counters = [value for key, value in model.state_dict().items() if key.endswith("num_batches_tracked")]
    assert [counter.item() for counter in counters] == [2, 2]


def test_a_wide_block_without_change_of_shape_begins_as_the_identity_plus_its_branch() -> None:
    """Nothing follows the addition: with a silent branch the block hands on its input, negative values too."""
    model = build_model("wrn16-1", (1, 8, 8), 2).eval()
    block = model.extractor.stage1[0]
    nn.init.zeros_(block.convolution2.weight)
    x = torch.randn(2, 16, 8, 8)
    assert torch.equal(block(x), x)


def test_shortcut_a_takes_every_other_pixel_and_adds_silent_channels() -> None:
    model = build_model("resnet8", (1, 8, 8), 2).eval()
    block = model.extractor.stage2[0]
    nn.init.zeros_(block.branch[3].weight)
    x = torch.rand(2, 16, 8, 8)
    out = block(x)
    assert torch.equal(out[:, :16], x[:, :, ::2, ::2])
    assert torch.equal(out[:, 16:], torch.zeros(2, 16, 4, 4))


@pytest.mark.parametrize("name", ["mlp", "cnn", "cnn-bn"])
def test_small_models_learn_digits(name: str) -> None:
    digits = load_digits()
    x = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 8 - 1
    y = torch.tensor(digits.target)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    train, test = order[:1400], order[1400:]
    with Streams(0).ambient("learn"):
        model = build_model(name, (1, 8, 8), 10)
        optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        for _ in range(6):
            for rows in train.split(32):
                optimiser.zero_grad()
                F.nll_loss(model(x[rows])[0], y[rows]).backward()
                optimiser.step()
    assert isinstance(model, Classifier)
    with torch.no_grad():
        accuracy = (model.eval()(x[test])[0].argmax(1) == y[test]).float().mean().item()
    assert accuracy > 0.94


@cache
def built(name: str) -> nn.Module:
    return build_model(name, (3, 32, 32), 10)


TOTALS = {
    # 3072*200 + 200, 200*200 + 200, 200*10 + 10
    "mlp": 614_600 + 40_200 + 2_010,
    # 27*8 + 8, 72*16 + 16, 16*64*128 + 128, 128*10 + 10
    "cnn": 224 + 1_168 + 131_200 + 1_290,
    # 27*8, 72*16, 2*8 + 2*16 for BatchNorm, the rest as above
    "cnn-bn": 216 + 1_152 + 48 + 131_200 + 1_290,
    # stem, stages, head
    "resnet8": 464 + 4_672 + 13_952 + 55_552 + 650,
    "resnet20": 464 + 3 * 4_672 + (13_952 + 2 * 18_560) + (55_552 + 2 * 73_984) + 650,
    "resnet18": 1_856 + 147_968 + 525_568 + 2_099_712 + 8_393_728 + 5_130,
    "resnet50": 1_856 + 215_808 + 1_219_584 + 7_098_368 + 14_964_736 + 20_490,
    "wrn16-1": 432 + 9_344 + 32_992 + 131_520 + 128 + 650,
    "wrn16-4": 432 + 121_248 + 525_184 + 2_098_944 + 512 + 2_570,
}
PUBLISHED = {"resnet20": 269_722, "resnet18": 11_173_962, "resnet50": 23_520_842, "wrn16-4": 2_748_890}


@pytest.mark.parametrize("name", TOTALS)
def test_parameter_counts(name: str) -> None:
    model = built(name)
    assert sum(parameter.numel() for parameter in model.parameters()) == TOTALS[name]
    assert TOTALS[name] == PUBLISHED.get(name, TOTALS[name])


def test_the_2nn_of_the_fedavg_paper_has_its_199210_parameters() -> None:
    model = build_model("mlp", (1, 28, 28), 10)
    assert [tuple(p.shape) for p in model.parameters() if p.dim() == 2] == [(200, 784), (200, 200), (10, 200)]
    assert sum(p.numel() for p in model.parameters()) == 199_210


def weights(model: nn.Module) -> list[tuple[int, ...]]:
    """Shapes of the convolutions and linear maps in the order the model defines them."""
    return [tuple(p.shape) for p in model.parameters() if p.dim() > 1]


def basic(before: int, widths: tuple[int, ...], depth: int, projection: bool) -> Iterator[tuple[int, ...]]:
    for width in widths:
        for number in range(depth):
            yield (width, before if number == 0 else width, 3, 3)
            yield (width, width, 3, 3)
            if projection and number == 0 and before != width:
                yield (width, before, 1, 1)
        before = width


def bottleneck(depths: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    before = 64
    for width, depth in zip((64, 128, 256, 512), depths, strict=True):
        for number in range(depth):
            yield (width, before, 1, 1)
            yield (width, width, 3, 3)
            yield (4 * width, width, 1, 1)
            if number == 0:
                yield (4 * width, before, 1, 1)
            before = 4 * width


SHAPES = {
    "cnn": [(8, 3, 3, 3), (16, 8, 3, 3), (128, 1024), (10, 128)],
    "cnn-bn": [(8, 3, 3, 3), (16, 8, 3, 3), (128, 1024), (10, 128)],
    "resnet8": [(16, 3, 3, 3), *basic(16, (16, 32, 64), 1, False), (10, 64)],
    "resnet20": [(16, 3, 3, 3), *basic(16, (16, 32, 64), 3, False), (10, 64)],
    "resnet18": [(64, 3, 3, 3), *basic(64, (64, 128, 256, 512), 2, True), (10, 512)],
    "resnet50": [(64, 3, 3, 3), *bottleneck((3, 4, 6, 3)), (10, 2048)],
    "wrn16-1": [(16, 3, 3, 3), *basic(16, (16, 32, 64), 2, True), (10, 64)],
    "wrn16-4": [(16, 3, 3, 3), *basic(16, (64, 128, 256), 2, True), (10, 256)],
}


@pytest.mark.parametrize("name", SHAPES)
def test_layer_shapes(name: str) -> None:
    assert weights(built(name)) == SHAPES[name]


@pytest.mark.parametrize("name", ["resnet8", "wrn16-4"])
def test_convolutions_start_from_kaiming_over_the_fan_out(name: str) -> None:
    """Standard deviation sqrt(2 / (k*k*channels out)), within 5 % on the large layers."""
    for weight in built(name).parameters():
        if weight.dim() == 4 and weight.numel() > 8_000:
            expected = (2 / prod((weight.shape[0], *weight.shape[2:]))) ** 0.5
            assert weight.std().item() == pytest.approx(expected, rel=0.05)
