from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

import fedstill
from fedstill.core.errors import InputError
from fedstill.core.streams import Streams
from fedstill.data.augmentation import NoAugmentation, PointAugmentation, augmentations
from fedstill.data.image_augmentation import ImageAugmentation


def clouds(size: int = 400, points: int = 256) -> torch.Tensor:
    values = np.random.default_rng(0).normal(size=(size, points, 3))
    return torch.from_numpy(values.astype(np.float32))


def draw(seed: int = 0) -> np.random.Generator:
    return Streams(seed).draw("augment")


class Told:
    """A generator that returns given draws, and records how many were requested."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.asked = list(answers), list[Any]()

    def random(self, shape: Any, dtype: Any = None) -> np.ndarray:
        self.asked.append(shape)
        return np.array(self.answers.pop(0), dtype=np.float32).reshape(shape)

    def integers(self, low: int, high: int, shape: tuple[int, ...]) -> np.ndarray:
        self.asked.append((low, high, shape))
        return np.array(self.answers.pop(0)).reshape(shape)

    def uniform(self, low: float, high: float, shape: tuple[int, ...]) -> np.ndarray:
        return low + (high - low) * self.random(shape).astype(float)


def test_a_case_by_hand() -> None:
    """Ratio 0.875 * 0.4 = 0.35 drops the last two of four points; scale 0.8 + 0.45 * 0.5; shift -0.1 + 0.2 * u."""
    cloud = torch.tensor([[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0], [0.0, 0.0, 0.0]]])
    generator = Told([0.4], [0.5, 0.36, 0.34, 0.0], [0.5], [0.0, 0.5, 1.0])
    out = PointAugmentation()({"inputs": cloud, "labels": torch.tensor([2])}, generator)  # type: ignore[arg-type]
    first, second = [1.025 - 0.1, 2.05, 3.075 + 0.1], [4.1 - 0.1, 5.125, 6.15 + 0.1]
    assert torch.allclose(out["inputs"], torch.tensor([[first, second, first, first]]))
    assert out["labels"].tolist() == [2]
    assert generator.asked == [(1, 1), (1, 4), (1, 1, 1), (1, 1, 3)]


def test_dropped_points_are_point_0_and_nothing_else_moves() -> None:
    before = clouds()
    out = PointAugmentation(scale_low=1, scale_high=1, shift=0)({"inputs": before}, draw())["inputs"]
    same, gone = (out == before).all(dim=2), (out == before[:, :1]).all(dim=2)
    assert bool((same | gone).all())
    shares = (~same).float().mean(dim=1)  # U[0, 0.875]: mean 0.4375, sd 0.2526
    assert shares.mean().item() == pytest.approx(0.4375, abs=0.04)
    assert shares.std().item() == pytest.approx(0.2526, abs=0.03)
    assert shares.max() < 0.96
    assert shares.min() < 0.05


def test_scales_and_shifts_are_uniform_and_one_per_cloud() -> None:
    before = clouds()
    out = PointAugmentation(dropout=0)({"inputs": before}, draw())["inputs"]
    scale = (out[:, 1:] - out[:, :1]) / (before[:, 1:] - before[:, :1])
    middle = scale.flatten(1).median(dim=1).values
    assert (scale.flatten(1) - middle[:, None]).abs().median() < 1e-5  # the same for all points and axes
    assert middle.min() >= 0.8
    assert middle.max() <= 1.25
    assert middle.mean().item() == pytest.approx(1.025, abs=0.02)
    shift = (out - before * middle[:, None, None]).median(dim=1).values
    assert shift.abs().max() <= 0.1001
    assert shift.std(dim=0) == pytest.approx([0.2 / 12**0.5] * 3, abs=0.006)
    assert abs(np.corrcoef(shift.numpy().T)[0, 1]) < 0.2


def test_the_generator_is_the_only_randomness_and_the_input_is_kept() -> None:
    before = clouds(20)
    kept = before.clone()
    torch.manual_seed(1)
    first = PointAugmentation()({"inputs": before}, draw())["inputs"]
    torch.manual_seed(2)
    torch.rand(9)
    state = torch.get_rng_state()
    again = PointAugmentation()({"inputs": before}, draw())["inputs"]
    assert torch.equal(first, again)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(before, kept)
    assert first.dtype == torch.float32
    assert not torch.equal(first, PointAugmentation()({"inputs": before}, draw(1))["inputs"])


def test_everything_off_is_the_same_cloud() -> None:
    before = clouds(5)
    settings = PointAugmentation(dropout=0, scale_low=1, scale_high=1, shift=0)
    assert torch.equal(settings({"inputs": before}, draw())["inputs"], before)


def test_names_and_settings() -> None:
    assert augmentations.names() == ["images", "none", "points", "scenes"]
    assert all(augmentations.summary(name).endswith(".") for name in augmentations)
    batch = {"inputs": torch.zeros(2, 1, 8, 8)}
    assert NoAugmentation()(batch, draw()) is batch
    for wrong in ({"dropout": 1.5}, {"scale_low": 2.0}, {"shift": -1}, {"rotation": 1}):
        with pytest.raises(ValidationError):
            PointAugmentation(**wrong)


def images(size: int = 300, channels: int = 3, height: int = 16, width: int = 24) -> torch.Tensor:
    values = np.random.default_rng(1).uniform(-0.9, 0.9, (size, channels, height, width))
    return torch.from_numpy(values.astype(np.float32))


def test_images_by_hand() -> None:
    """Padded by one: the first is cropped at (0, 2) and stays, the second at (1, 1), its own place, and is mirrored.

    0 0 0 0
    0 1 2 0    rows 0 and 1, columns 2 and 3:  0 0
    0 3 4 0                                    2 0
    0 0 0 0
    """
    pair = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]], [[[5.0, 6.0], [7.0, 8.0]]]])
    generator = Told([0.7, 0.4], [[0, 2], [1, 1]])
    settings = ImageAugmentation(padding=1, fill=0.0)
    out = settings({"inputs": pair, "labels": torch.tensor([1, 2])}, generator)  # type: ignore[arg-type]
    assert out["inputs"].tolist() == [[[[0.0, 0.0], [2.0, 0.0]]], [[[6.0, 5.0], [8.0, 7.0]]]]
    assert out["labels"].tolist() == [1, 2]
    assert generator.asked == [2, (0, 3, (2, 2))]


def one_by_one(batch: torch.Tensor, padding: int, fill: float, generator: np.random.Generator) -> np.ndarray:
    """The same without torch and without batches: each image is padded, sliced and reversed by numpy."""
    flips, places = generator.random(len(batch)) < 0.5, generator.integers(0, 2 * padding + 1, (len(batch), 2))
    made = []
    for image, flip, (top, left) in zip(batch.numpy(), flips, places, strict=True):
        padded = np.pad(image, ((0, 0), (padding, padding), (padding, padding)), constant_values=fill)
        cut = padded[:, top : top + image.shape[1], left : left + image.shape[2]]
        made.append(cut[:, :, ::-1] if flip else cut)
    return np.stack(made)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_images_equal_an_independent_implementation_bit_for_bit(channels: int) -> None:
    before = images(40, channels)
    out = ImageAugmentation()({"inputs": before}, draw())["inputs"]
    assert out.is_contiguous()
    assert np.array_equal(out.numpy(), one_by_one(before, 2, -1.0, draw()))  # an eighth of 16
    more = ImageAugmentation(padding=5, fill=0.25)({"inputs": before}, draw(3))["inputs"]
    assert np.array_equal(more.numpy(), one_by_one(before, 5, 0.25, draw(3)))


def test_places_and_mirrors_are_uniform() -> None:
    """A bright pixel in the middle shows the place of the crop, and its neighbour whether the image is mirrored."""
    before = torch.zeros(4000, 1, 9, 9)
    before[:, 0, 4, 4], before[:, 0, 4, 5] = 1.0, 0.5
    out = ImageAugmentation(padding=2)({"inputs": before}, draw())["inputs"][:, 0]
    place = (out == 1.0).flatten(1).int().argmax(dim=1)
    rows, columns = place // 9, place % 9
    for found in (rows, columns):
        shares = torch.bincount(found, minlength=9)[2:7] / 4000
        assert shares.tolist() == pytest.approx([0.2] * 5, abs=0.025)
    right = out[torch.arange(4000), rows, columns + 1] == 0.5
    assert right.float().mean().item() == pytest.approx(0.5, abs=0.025)
    assert abs(np.corrcoef(np.stack([rows, columns, right]))[np.triu_indices(3, 1)]).max() < 0.05


def test_without_flips_places_stay_the_same_and_without_padding_nothing_moves() -> None:
    before = images(50)
    crops = ImageAugmentation(flip=False)({"inputs": before}, draw())["inputs"]
    both = ImageAugmentation()({"inputs": before}, draw())["inputs"]
    mirrored = torch.tensor([not torch.equal(one, other) for one, other in zip(crops, both, strict=True)])
    assert torch.equal(torch.where(mirrored.reshape(-1, 1, 1, 1), crops.flip(3), crops), both)
    assert 15 <= int(mirrored.sum()) <= 35
    assert torch.equal(ImageAugmentation(flip=False, padding=0)({"inputs": before}, draw())["inputs"], before)


def test_images_use_no_other_randomness_and_keep_their_input() -> None:
    before = images(20)
    kept, state = before.clone(), torch.get_rng_state()
    first = ImageAugmentation()({"inputs": before}, draw())["inputs"]
    assert torch.equal(first, ImageAugmentation()({"inputs": before}, draw())["inputs"])
    assert not torch.equal(first, ImageAugmentation()({"inputs": before}, draw(1))["inputs"])
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(before, kept)


@pytest.mark.parametrize(
    ("augmentation", "kind", "why"),
    [
        ("images", "cloud", "images is for images, and this data holds clouds: choose augmentation=points or none"),
        ("images", "scene", "images is for images, and this data holds scenes: choose augmentation=scenes or none"),
        ("images", "array", "images is for images, and this data holds arrays: choose augmentation=none"),
        ("points", "scene", "points is for clouds, and this data holds scenes: choose augmentation=scenes or none"),
        ("scenes", "cloud", "scenes is for scenes, and this data holds clouds: choose augmentation=points or none"),
    ],
)
def test_data_of_another_kind_is_refused(augmentation: str, kind: str, why: str) -> None:
    with pytest.raises(InputError, match=f"the augmentation {why}$"):
        augmentations[augmentation]().check(kind, (64, 3))


@pytest.mark.parametrize(
    ("augmentation", "why"),
    [
        ("points", "points is for clouds, and this data holds images: choose augmentation=images or none"),
        ({"name": "images", "padding": 8}, "images of 8x8 pixels could be cropped to padding alone: choose at most 7"),
    ],
)
def test_runs_are_refused_before_any_work(augmentation: Any, why: str) -> None:
    with pytest.raises(InputError, match=why):
        fedstill.egress("fedavg", data="digits", augmentation=augmentation)


def test_tables_are_refused_and_images_of_the_users_own_are_augmented_in_any_layout(tmp_path: Path) -> None:
    """Channels last and without channels, as arrays come: both reach models as (channels, height, width)."""
    labels = np.arange(60) % 2
    with pytest.raises(InputError, match="holds arrays: choose augmentation=none"):
        fedstill.egress("fedavg", data=(np.zeros((60, 5)), labels), augmentation="images")
    pixels = np.random.default_rng(0).integers(0, 256, (60, 12, 12, 3), dtype=np.uint8)
    for own in (pixels, pixels[..., 0]):
        made = fedstill.dataset((own, labels))
        assert made.shape == ((3, 12, 12) if own.ndim == 4 else (1, 12, 12))
        settings: dict[str, Any] = {"data": made, "clients": 2, "rounds": 1, "batch": 8, "out": tmp_path}
        plain, mirrored = (fedstill.run("fedavg", augmentation=name, **settings) for name in ("none", "images"))
        assert plain.sha256 != mirrored.sha256


def test_wrong_settings_of_images() -> None:
    for wrong in ({"padding": -1}, {"padding": 1.5}, {"flip": "sometimes"}, {"fill": float("nan")}, {"turn": 1}):
        with pytest.raises(ValidationError):
            ImageAugmentation(**wrong)
