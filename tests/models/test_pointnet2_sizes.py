"""The numbers behind each PointNet++, and how callers set them otherwise."""

from __future__ import annotations

from inspect import Parameter, signature

import pytest

from fedstill.core.errors import InputError
from fedstill.models import build_model, models
from fedstill.models.pointnet2_levels import Ball
from fedstill.models.pointnet2_sizes import TEACHER, PointNet2Sizes

# width; centres, radius and neighbours of both levels; dropout in the head.
NUMBERS = {
    "pointnet2": (64, 512, 0.2, 32, 128, 0.4, 64, 0.4),
    "small-pointnet2": (32, 256, 0.2, 16, 64, 0.4, 32, 0.4),
    "pointnet2-lite": (32, 64, 0.3, 16, 16, 0.6, 16, 0.4),
    "small-pointnet2-lite": (16, 64, 0.3, 8, 16, 0.6, 8, 0.4),
    "pointnet2-segmentation": (64, 512, 0.2, 32, 128, 0.4, 64, 0.5),
    "pointnet2-segmentation-lite": (32, 64, 0.3, 16, 16, 0.6, 16, 0.5),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_the_signature_names_every_size_with_its_default(name: str) -> None:
    shape, classes, *sizes = signature(models[name]).parameters.values()
    assert (shape.name, classes.name) == ("shape", "classes")
    assert all(size.kind is Parameter.KEYWORD_ONLY for size in sizes)
    assert tuple(size.default for size in sizes) == NUMBERS[name]


@pytest.mark.parametrize("name", NUMBERS)
def test_any_size_can_be_set_and_the_others_stay(name: str) -> None:
    usual = PointNet2Sizes(*NUMBERS[name])
    model = build_model(name, (300, 3), 4, width=8, radius2=0.75)
    level1, level2 = model.extractor.level1, model.extractor.level2
    assert level1.ball == Ball(usual.centres1, usual.radius1, usual.neighbours1)
    assert level2.ball == Ball(usual.centres2, 0.75, usual.neighbours2)
    assert level1.linear1.out_features == 8
    with pytest.raises(InputError, match=f"model '{name}' has no size called 'centers1': did you mean 'centres1'"):
        build_model(name, (300, 3), 4, centers1=8)
    with pytest.raises(InputError, match="the second level samples the first: 9 of 8 is too many"):
        build_model(name, (300, 3), 4, centres1=8, centres2=9)


def test_what_a_caller_sets_is_not_kept() -> None:
    build_model("pointnet2", (300, 3), 4, width=8)
    assert TEACHER.width == 64
    assert build_model("pointnet2", (300, 3), 4).feature_size == 16 * 64
