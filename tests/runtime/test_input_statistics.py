"""Normalisation in the model: by name, by numbers, and by the training data's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import fedstill
from fedstill.core.errors import InputError
from fedstill.data.lookup import load
from fedstill.models import build_model
from fedstill.models.model_settings import IMAGENET
from fedstill.runtime.input_statistics import channel_statistics


def test_statistics_against_a_plain_computation() -> None:
    data = load("digits,channels=3").train
    pixels = data.columns["inputs"].double() / 255
    expected = [*pixels.mean(dim=(0, 2, 3)).tolist(), *pixels.std(dim=(0, 2, 3), unbiased=False).tolist()]
    assert channel_statistics(data) == [round(value, 4) for value in expected]


def test_imagenet_is_what_its_models_expect() -> None:
    torch.manual_seed(0)
    plain = build_model("cnn", (3, 8, 8), 4).eval()
    torch.manual_seed(0)
    model = build_model("cnn:normalise=imagenet", (3, 8, 8), 4).eval()
    assert model.state_dict().keys() == plain.state_dict().keys()
    shares = torch.rand(2, 3, 8, 8)
    mean, deviation = (torch.tensor(part).view(3, 1, 1) for part in (IMAGENET[:3], IMAGENET[3:]))
    expected = plain((shares - mean) / deviation)[0]
    torch.testing.assert_close(model(shares * 2 - 1)[0], expected, rtol=1e-4, atol=1e-5)
    first, second = model.parts()
    torch.testing.assert_close(second(first(shares * 2 - 1)).log_softmax(dim=1), expected, rtol=1e-4, atol=1e-5)


def test_the_data_sets_own_numbers_are_recorded_and_used_on_every_path(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"clients": 2, "rounds": 1, "epochs": 1, "batch": 64, "out": tmp_path}
    made = fedstill.run("fedavg", data="digits", model="cnn:normalise=dataset", **settings)
    numbers = channel_statistics(load("digits").train)
    assert made.experiment.model == f"cnn:normalise=[{numbers[0]},{numbers[1]}]"
    again = fedstill.run("fedavg", data="digits", model={"name": "cnn", "normalise": "dataset"}, **settings)
    assert again.reused
    plain = fedstill.run("fedavg", data="digits", model="cnn", **settings)
    assert plain.path != made.path
    elsewhere = fedstill.run(
        "fedavg", data="digits", model="cnn:normalise=dataset", engine="wire", **{**settings, "out": tmp_path / "wire"}
    )
    assert elsewhere.result.sha256 == made.result.sha256


@pytest.mark.parametrize(
    ("model", "shape", "sentence"),
    [
        ("cnn:normalise=imagenet", (1, 8, 8), "imagenet has three channels: set channels=3 of the data"),
        ("cnn:normalise=[0.5,0]", (1, 8, 8), "a mean and a standard deviation above 0"),
        ("cnn:normalise=[0.5,0.2,0.1]", (1, 8, 8), "3 numbers are given"),
        ("cnn:normalise=dataset", (1, 8, 8), "needs all training data in one place: give numbers"),
        ("pointnet-tiny:normalise=[0.5,0.5]", (64, 3), "normalise is for images"),
        ("cnn:normalise=cifar", (1, 8, 8), "normalise"),
    ],
)
def test_wrong_normalisation_is_named(model: str, shape: tuple[int, ...], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        build_model(model, shape, 4)
