"""Images of real size: stretched, cropped or padded to one square, from files and from arrays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import fedstill
from fedstill.core.errors import InputError
from fedstill.data.catalogue import check, load
from fedstill.data.data_settings import DataSettings
from fedstill.data.image_layout import arrange
from fedstill.data.unlabelled import load_proxy


def halves(width: int, height: int) -> Image.Image:
    """Black on the left, white on the right; of high images, black above."""
    pixels = np.zeros((height, width), dtype=np.uint8)
    if width >= height:
        pixels[:, width // 2 :] = 255
    else:
        pixels[height // 2 :] = 255
    return Image.fromarray(pixels)


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """Two classes of images of two sizes."""
    for number in range(5):
        for kind, size in (("wide", (40, 20)), ("high", (10, 30))):
            (tmp_path / kind).mkdir(exist_ok=True)
            image = halves(*size)
            image.putpixel((0, 0), number)
            image.save(tmp_path / kind / f"{number}.png")
    return tmp_path


def test_different_sizes_need_a_size(mixed: Path) -> None:
    with pytest.raises(InputError, match=r"images have 2 sizes, .* set the side .*folder:.*,size=224"):
        load(f"folder:{mixed}")
    assert "size=224" in check(f"folder:{mixed}").problems[0]


def test_each_fit_by_hand(mixed: Path) -> None:
    """The lower right quarter is white when stretched; padding leaves black rows above and below wide images."""
    for fit, corner, middle in (("resize", 255, 255), ("crop", 255, 255), ("pad", 0, 255)):
        bundle = load(f"folder:{mixed},size=8,fit={fit}")
        assert bundle.name.startswith(f"folder:{mixed},size=8")
        assert bundle.shape == (1, 8, 8)
        wide = bundle.train.columns["inputs"][bundle.train.labels() == bundle.classes.index("wide")]
        assert wide[0, 0, -1, -1] == corner
        assert wide[0, 0, 4, -1] == middle
    padded = load(f"folder:{mixed},size=8,fit=pad").train.columns["inputs"][-1, 0]
    assert (padded > 127).sum() == 4 * 4, "a wide image covers half of the square, and half of that is white"


def test_settings_reach_training_and_prediction(mixed: Path, tmp_path: Path) -> None:
    made = fedstill.run(
        "fedavg", data=f"folder:{mixed}", size=16, fit="pad", model="mlp", clients=2, rounds=1, out=tmp_path / "runs"
    )
    assert made.experiment.data == f"folder:{mixed},size=16,fit=pad"
    (said,) = fedstill.predict(made, mixed / "wide" / "0.png")
    assert said.inputs.shape == (1, 16, 16)
    assert (said.inputs[0, :4] == -1).all(), "padded like the training images"


def test_arrays_are_arranged_as_files_are(mixed: Path) -> None:
    pixels = np.asarray(halves(40, 20))
    files = load(f"folder:{mixed},size=8,fit=crop")
    wide = files.train.columns["inputs"][-1]
    arranged = arrange(torch.from_numpy(pixels.copy())[None, None], DataSettings(size=8, fit="crop"), "x")
    assert torch.equal(arranged[0], wide)
    assert load("digits,size=16,channels=3").shape == (3, 16, 16)
    assert load("digits[:50%],size=16").shape == (1, 16, 16)


def test_grey_and_colour() -> None:
    colour = torch.tensor([200, 100, 50], dtype=torch.uint8).view(1, 3, 1, 1).expand(1, 3, 8, 8)
    (grey,) = arrange(colour, DataSettings(channels=1), "x")[0, :, 0, :1].tolist()
    assert grey == [round(0.299 * 200 + 0.587 * 100 + 0.114 * 50)]
    floats = arrange(torch.full((1, 1, 4, 6), 0.25), DataSettings(size=8, channels=3), "x")
    assert torch.equal(floats, torch.full((1, 3, 8, 8), 0.25))
    with pytest.raises(InputError, match="images have 4 channels, and channels=3 is asked for"):
        arrange(torch.zeros(1, 4, 8, 8), DataSettings(channels=3), "x")


def test_sixteen_bits_are_scaled_by_their_range_and_noted(tmp_path: Path) -> None:
    for number in range(5):
        for kind in "ab":
            (tmp_path / kind).mkdir(exist_ok=True)
            deep = np.full((8, 8), 257 * (number + 50 * (kind == "b")), dtype=np.uint16)
            Image.fromarray(deep).save(tmp_path / kind / f"{number}.{'png' if kind == 'a' else 'tif'}")
    report = check(f"folder:{tmp_path}")
    assert report.ok, report.problems
    assert "10 of 10 images have more than 8 bits" in str(report.notes)
    assert report.range == (0, 54)


def test_other_kinds_of_data_have_no_size() -> None:
    with pytest.raises(InputError, match="size and channels are for images, and heads holds clouds"):
        load("heads,size=64")


def test_unlabelled_images_take_settings(mixed: Path) -> None:
    assert load_proxy(f"folder:{mixed / 'wide'},size=12,channels=3").shape == (3, 12, 12)
