"""Layer shapes and parameter counts against numbers derived by hand, with 3 input channels and 10 classes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from math import prod

import pytest
from torch import nn

from fedstill.models import build_model


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
