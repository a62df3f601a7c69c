from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedstill.core.errors import InputError
from fedstill.data.catalogue import check, load


def paint(path: Path, value: int = 0, size: tuple[int, int] = (6, 4), mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value if mode in ("L", "1") else (value, 0, 255 - value)).save(path)


def test_cinic_folders(tmp_path: Path) -> None:
    for part, value in (("train", 10), ("valid", 20), ("test", 30)):
        for kind in ("cat", "airplane"):
            for number in range(2):
                colour = value + 2 * (kind == "cat") + number
                paint(tmp_path / "cinic10" / part / kind / f"{number}.png", colour, (32, 32))
    bundle = load("cinic10", tmp_path)
    assert bundle.classes == ("airplane", "cat")
    assert bundle.shape == (3, 32, 32)
    assert bundle.validation is not None
    assert bundle.train.columns["inputs"][:, 0, 0, 0].tolist() == [10, 11, 12, 13]
    assert check("cinic10", root=tmp_path).ok


@pytest.mark.parametrize("twice", [("train", "Train"), ("val", "valid")])
def test_two_folders_for_one_split_are_a_fault(tmp_path: Path, twice: tuple[str, str]) -> None:
    for part in {"train", "test", *twice}:
        for number, kind in enumerate("ab"):
            paint(tmp_path / part / kind / "0.png", 20 * number + len(part))
    problems = check(f"folder:{tmp_path}").problems
    assert any(
        f"has several folders of {'train' if 'train' in twice else 'validation'} data" in one for one in problems
    )
    with pytest.raises(InputError, match=f"{' and '.join(sorted(twice))}: make them one"):
        load(f"folder:{tmp_path}")


def test_classes_may_be_called_like_splits(tmp_path: Path) -> None:
    for kind in ("val", "valid"):
        for number in range(5):
            paint(tmp_path / kind / f"{number}.png", 20 * number + len(kind))
    assert load(f"folder:{tmp_path}").classes == ("val", "valid")


def test_class_folders_without_a_split(tmp_path: Path) -> None:
    for number in range(10):
        paint(tmp_path / "ours" / "a" / f"{number}.png", number, mode="L")
        paint(tmp_path / "ours" / "b" / f"{number}.PNG", 100 + number, mode="L")
    bundle = load(f"folder:{tmp_path / 'ours'}")
    assert bundle.shape == (1, 4, 6)  # (channels, height, width) of images 6 wide and 4 high
    assert (len(bundle.train), len(bundle.test)) == (16, 4)
    assert torch.equal(bundle.train.columns["inputs"][:, 0, 0, 0] >= 100, bundle.train.labels().bool())


def test_other_files_and_hidden_folders_are_left_out(tmp_path: Path) -> None:
    for number in range(5):
        paint(tmp_path / "a" / f"{number}.png", number)
        paint(tmp_path / "b" / f"{number}.png", 50 + number)
    (tmp_path / "a" / "notes.txt").write_text("hello")
    (tmp_path / ".hidden").mkdir()
    report = check(f"folder:{tmp_path}")
    assert report.ok
    assert report.shapes["train"] == (3, 4, 6)
    assert "1 files in" in str(report.notes)


def test_grey_and_colour_together_become_colour(tmp_path: Path) -> None:
    for number in range(5):
        paint(tmp_path / "a" / f"{number}.png", number, mode="L")
        paint(tmp_path / "b" / f"{number}.png", number)
    assert load(f"folder:{tmp_path}").shape == (3, 4, 6)


def test_every_unreadable_image_is_listed(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    for number in range(6):
        for kind in "ab":
            (tmp_path / kind).mkdir(exist_ok=True)
            noise = generator.integers(0, 256, (30, 30), dtype=np.uint8)
            Image.fromarray(noise).save(tmp_path / kind / f"{number}.png")
    (tmp_path / "a" / "0.png").write_bytes(b"")
    (tmp_path / "a" / "1.png").write_bytes(b"not an image")
    whole = (tmp_path / "b" / "2.png").read_bytes()
    (tmp_path / "b" / "2.png").write_bytes(whole[: len(whole) // 2])
    report = check(f"folder:{tmp_path}")
    assert not report.usable
    assert [problem.removeprefix(f"{tmp_path}/").split(" (")[0] for problem in report.problems] == [
        "a/0.png is empty",
        "a/1.png is no image that Pillow can read",
        "b/2.png is a damaged image",
    ]
    assert report.sizes == {"train": 7, "test": 2}
    with pytest.raises(InputError, match=r"0.png is empty .*and 2 more"):
        load(f"folder:{tmp_path}")


def test_an_image_too_large_to_be_safe_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paint(tmp_path / "a" / "big.png", size=(40, 40))
    paint(tmp_path / "b" / "small.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(InputError, match=r"big.png is an image of too many pixels"):
        load(f"folder:{tmp_path}")


def test_empty_classes_and_one_sided_classes_are_told(tmp_path: Path) -> None:
    for part in ("train", "test"):
        for kind in ("a", "b"):
            paint(tmp_path / part / kind / "0.png", 7 if part == "train" else 9 + (kind == "a"))
    (tmp_path / "train" / "empty").mkdir()
    (tmp_path / "test" / "b" / "0.png").rename(tmp_path / "test" / "b" / "0.txt")
    report = check(f"folder:{tmp_path}")
    assert "class 'empty' has no training samples: add some, or take the class away" in report.problems
    assert "class 'b' has no test samples: its accuracy cannot be measured" in report.problems
    with pytest.raises(InputError, match="class 'empty' has no training samples"):
        load(f"folder:{tmp_path}")


def test_images_that_are_not_read_are_reported(tmp_path: Path) -> None:
    """Beside the classes, below them, further pictures of a file, other formats; but not the files of a Mac."""
    for kind in "ab":
        for number in range(5):
            paint(tmp_path / kind / f"{number}.png", 40 * number + (kind == "a"))
    Image.new("RGB", (6, 4)).save(
        tmp_path / "a" / "9.gif", save_all=True, append_images=[Image.new("RGB", (6, 4), "red")]
    )
    paint(tmp_path / "a" / "deep" / "0.png", 7)
    paint(tmp_path / "loose.png", 8)
    for name in ("._0.png", "Thumbs.heic"):
        (tmp_path / "b" / name).write_bytes(b"x")
    report = check(f"folder:{tmp_path}")
    for said in (
        f"1 images in {tmp_path} itself are in no class folder and are left out: {tmp_path}/loose.png",
        f"1 images in folders below {tmp_path}/a are left out: {tmp_path}/a/deep/0.png",
        f"1 files hold several pictures, and the first is read: {tmp_path}/a/9.gif",
    ):
        assert said in report.problems
    assert f"1 files in {tmp_path}/b are not images (.heic) and are left out" in report.notes
    assert report.usable
    assert len(report.problems) == 3


def test_twelve_bits_in_sixteen_are_doubted(tmp_path: Path) -> None:
    for kind in "ab":
        for number in range(5):
            pixels = np.full((8, 8), 400 * number + 2000 * (kind == "a"), dtype=np.uint16)
            (tmp_path / kind).mkdir(exist_ok=True)
            Image.fromarray(pixels).save(tmp_path / kind / f"{number}.png")
    said = f"images of more than 8 bits in {tmp_path} end at 14 of 255"  # 3,600 of 65,535
    assert any(problem.startswith(said) for problem in check(f"folder:{tmp_path}").problems)


def test_folders_two_deep_may_be_sites(tmp_path: Path) -> None:
    for site in ("north", "south"):
        for kind in "ab":
            paint(tmp_path / site / kind / "0.png", len(site))
    with pytest.raises(InputError, match="if its folders are sites, set site=folder"):
        load(f"folder:{tmp_path}")
