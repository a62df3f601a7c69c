"""Images and clouds that are nearly in two splits: found when saved anew, and not if they only resemble each other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_image

from fedstill.data.check import check
from fedstill.data.clouds import normalise
from fedstill.data.layout import Samples
from fedstill.data.near_duplicates import marks, pairs_alike

PHOTO = Image.fromarray(load_sample_image("china.jpg"))


def cut(number: int) -> Image.Image:
    """Different places of one photograph."""
    left, top = 60 * (number % 8), 60 * (number // 8)
    return PHOTO.crop((left, top, left + 60, top + 60))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(32):
        part = "test" if number % 4 == 0 else "train"
        place = tmp_path / part / str(number % 2)
        place.mkdir(parents=True, exist_ok=True)
        cut(number).save(place / f"{number}.png")
    for part in ("train", "test"):
        (tmp_path / part / "1").mkdir(exist_ok=True)
    for number in (41, 42):
        Image.fromarray(np.random.default_rng(number).integers(0, 255, (60, 60, 3), dtype=np.uint8)).save(
            tmp_path / "test" / "1" / f"{number}.png"
        )
    return tmp_path


def alike(folder: Path) -> list[str]:
    return [text for text in check(f"folder:{folder},size=48").problems if "nearly" in text]


def test_different_cuts_of_one_photograph_are_no_duplicates(folder: Path) -> None:
    assert not alike(folder)


@pytest.mark.parametrize("change", ["jpeg", "smaller", "brighter"])
def test_a_changed_copy_is_found_and_named(folder: Path, change: str) -> None:
    image = cut(21)
    if change == "smaller":
        image = image.resize((40, 40))
    if change == "brighter":
        image = image.point(lambda value: min(255, round(value * 0.85 + 20)))
    name = "copy.jpg" if change == "jpeg" else "copy.png"
    image.save(folder / "test" / "1" / name, **({"quality": 60} if change == "jpeg" else {}))
    (text,) = alike(folder)
    assert text.startswith("1 test image is nearly the same as in train")
    assert f"{name}, like " in text
    assert "21.png" in text


def test_an_identical_copy_is_reported_once(folder: Path) -> None:
    cut(21).save(folder / "test" / "1" / "copy.png")
    problems = check(f"folder:{folder},size=48").problems
    assert sum("identical" in text for text in problems) == 1
    assert not [text for text in problems if "nearly" in text]


def test_clouds_in_another_order_are_the_same() -> None:
    draw = np.random.default_rng(0)
    clouds = normalise(draw.normal(size=(4, 50, 3)).astype(np.float32))
    other = np.stack([clouds[2][draw.permutation(50)], normalise(draw.normal(size=(1, 50, 3)).astype(np.float32))[0]])
    one, two = (
        marks(Samples(torch.from_numpy(some), torch.zeros(len(some), dtype=torch.int64), "cloud"))
        for some in (clouds, other)
    )
    assert list(pairs_alike(one, two)) == [(2, 0)]


def test_small_images_and_numbers_are_not_compared() -> None:
    labels = torch.zeros(3, dtype=torch.int64)
    assert marks(Samples(torch.zeros(3, 1, 8, 8), labels, "image")) is None
    assert marks(Samples(torch.zeros(3, 5), labels, "array")) is None
