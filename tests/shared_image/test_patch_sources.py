"""Images and clouds by name: every mode a file may have, and every way it may be wrong."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from PIL import Image

from fedstill.core.errors import InputError
from fedstill.data.catalogue import add
from fedstill.data.heads import make_heads
from fedstill.shared_image.patch_sources import cloud_source, is_cloud_source, patch_source

PIXELS = np.random.default_rng(0).integers(0, 256, (30, 40, 3), dtype=np.uint8)


def saved(path: Path, picture: Image.Image, **options: object) -> str:
    picture.save(path, **options)
    return f"image:{path}"


def test_colours_come_as_they_are_and_grey_three_times(tmp_path: Path) -> None:
    picture = Image.fromarray(PIXELS)
    assert np.array_equal(patch_source(saved(tmp_path / "a.png", picture)), PIXELS)
    assert np.array_equal(patch_source(saved(tmp_path / "b.bmp", picture)), PIXELS)
    grey = patch_source(saved(tmp_path / "l.png", Image.fromarray(PIXELS[:, :, 0])))
    assert np.array_equal(grey, np.repeat(PIXELS[:, :, :1], 3, axis=2))
    few = picture.quantize(8)
    assert np.array_equal(patch_source(saved(tmp_path / "p.png", few)), np.asarray(few.convert("RGB")))
    bits = Image.fromarray(PIXELS[:, :, 0] > 127)
    assert set(np.unique(patch_source(saved(tmp_path / "1.png", bits)))) == {0, 255}
    assert patch_source(saved(tmp_path / "cmyk.jpg", picture.convert("CMYK"))).shape == (30, 40, 3)


def test_sixteen_bits_become_eight(tmp_path: Path) -> None:
    deep = PIXELS[:, :, 0].astype(np.uint16) * 257
    found = patch_source(saved(tmp_path / "deep.png", Image.fromarray(deep)))
    assert np.array_equal(found[:, :, 1], PIXELS[:, :, 0])
    floats = Image.fromarray(PIXELS[:, :, 0].astype(np.float32) / 7 - 3)
    found = patch_source(saved(tmp_path / "deep.tiff", floats))
    low, high = int(PIXELS[:, :, 0].min()), int(PIXELS[:, :, 0].max())
    wanted = (PIXELS[:, :, 0].astype(float) - low) / (high - low) * 255
    assert np.abs(found[:, :, 0] - wanted).max() <= 0.51


def test_what_is_transparent_is_white(tmp_path: Path) -> None:
    see_through = np.dstack([PIXELS, np.full((30, 40), 255, np.uint8)])
    see_through[:10, :, 3] = 0
    found = patch_source(saved(tmp_path / "a.png", Image.fromarray(see_through, "RGBA")))
    assert (found[:10] == 255).all()
    assert np.array_equal(found[10:], PIXELS[10:])


def test_photos_are_turned_as_the_camera_says(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter clockwise
    name = saved(tmp_path / "turned.png", Image.fromarray(PIXELS), exif=exif)
    assert np.array_equal(patch_source(name), np.rot90(PIXELS, -1))


def test_files_are_found_here_and_under_the_data_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "images").mkdir()
    saved(tmp_path / "images" / "a.png", Image.fromarray(PIXELS))
    assert np.array_equal(patch_source("image:images/a.png", tmp_path), PIXELS)
    with pytest.raises(InputError, match=r"there is no file images/a\.png, neither here nor under the data root"):
        patch_source("image:images/a.png")
    monkeypatch.chdir(tmp_path)
    assert np.array_equal(patch_source("image:images/a.png"), PIXELS)


def test_damaged_files_get_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = io.BytesIO()
    Image.fromarray(PIXELS).save(whole, "png")
    contents = {
        "empty.png": (b"", r"is empty \(0 bytes\)"),
        "prose.png": (b"not a picture at all", "is no image that Pillow can read"),
        "cut.png": (whole.getvalue()[: len(whole.getvalue()) // 2], "is a damaged image"),
    }
    for name, (data, sentence) in contents.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(InputError, match=sentence):
            patch_source(f"image:{tmp_path / name}")
    frames = [Image.fromarray(PIXELS), Image.fromarray(255 - PIXELS)]
    moving = saved(tmp_path / "moving.gif", frames[0], save_all=True, append_images=frames[1:])
    with pytest.raises(InputError, match=r"moving.gif holds 2 pictures: give a still image"):
        patch_source(moving)
    large = saved(tmp_path / "large.png", Image.fromarray(PIXELS))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(InputError, match="too many pixels to be opened safely"):
        patch_source(large)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("chine", "unknown image 'chine': did you mean 'china'"),
        ("noise:5", "write noise:WIDTHxHEIGHT"),
        ("noise:0x20", "must lie between 1 and 4,096"),
        ("noise:20x99999", "must lie between 1 and 4,096"),
        ("heads:0", "heads:0 is a cloud, and an image is needed"),
        ("image:", "or give image:FILE"),
    ],
)
def test_names_that_are_no_image(name: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        patch_source(name)


def test_pictures_of_scikit_image_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    package, data = ModuleType("skimage"), ModuleType("skimage.data")
    vars(data).update(astronaut=lambda: PIXELS, camera=lambda: PIXELS[:, :, 0], page=lambda: np.zeros((2, 3, 4, 5)))
    vars(data).update(download_all=lambda: pytest.fail("a name was called that is no picture"))
    vars(package).update(data=data)
    monkeypatch.setitem(sys.modules, "skimage", package)
    monkeypatch.setitem(sys.modules, "skimage.data", data)
    assert np.array_equal(patch_source("skimage:astronaut"), PIXELS)
    assert patch_source("skimage:camera").shape == (30, 40, 3)
    with pytest.raises(InputError, match="is no 8-bit picture"):
        patch_source("skimage:page")
    with pytest.raises(InputError, match="scikit-image has no picture 'moon' here"):
        patch_source("skimage:moon")
    for name in ("download_all", "zebra", "__class__"):
        with pytest.raises(InputError, match=f"scikit-image comes with no picture '{name}': "):
            patch_source(f"skimage:{name}")
    monkeypatch.setitem(sys.modules, "skimage.data", None)
    with pytest.raises(InputError, match="needs scikit-image: install it"):
        patch_source("skimage:astronaut")


def test_clouds_by_row_and_by_file(tmp_path: Path) -> None:
    clouds, _ = make_heads(per_class=1, points=300)
    np.save(tmp_path / "a.npy", clouds[0])
    found = cloud_source(f"cloud:{tmp_path / 'a.npy'}")
    assert sorted(map(tuple, found.tolist())) == sorted(map(tuple, clouds[0].tolist()))
    np.savez(tmp_path / "scene.npz", points=np.c_[clouds[1], np.ones(300)], boxes=np.zeros((1, 7)))
    assert np.array_equal(cloud_source("cloud:scene.npz", tmp_path), clouds[1])
    np.savez(tmp_path / "many.npz", x=clouds)
    row = cloud_source(f"npz:{tmp_path / 'many.npz'}:2")
    assert np.allclose(row, clouds[2], atol=1e-6)
    np.savez(tmp_path / "labelled.npz", x=clouds, y=np.arange(4) % 2)
    add("mine", tmp_path / "labelled.npz", tmp_path)
    assert cloud_source("mine:1", tmp_path).shape == (300, 3)
    corners = "".join(f"{x} {y} {z}\n" for x in (0, 1) for y in (0, 1) for z in (0, 1))
    (tmp_path / "box.off").write_text(f"OFF\n8 2 0\n{corners}3 0 1 2\n3 5 6 7\n")
    assert cloud_source("cloud:box.off", tmp_path).shape == (20_000, 3)


def test_clouds_that_cannot_be_used(tmp_path: Path) -> None:
    np.savez(tmp_path / "many.npz", x=np.zeros((4, 10, 3)), y=np.arange(4) % 2)
    np.savez(tmp_path / "nan.npz", points=np.full((9, 3), np.nan))
    (tmp_path / "bad.npz").write_bytes(b"PK\x03\x04 nothing")
    (tmp_path / "a.docx").write_bytes(b"prose")
    wrong = {
        "cloud:many.npz": "of an archive of many clouds give npz:FILE:ROW",
        "cloud:nan.npz": "9 of 9 points are NaN or infinite",
        "cloud:bad.npz": "cannot be read as an archive",
        "cloud:a.docx": "is no cloud: give .npz, .ply",
        "cloud:~nosuchuser/a.ply": "~nosuchuser/a.ply cannot be reached",
        "cloud:none.ply": "there is no file none.ply",
        "heads:320": "heads has 320 training samples, counted from 0: there is no 320",
        "digits:0": "digits holds images, and a cloud is needed",
        "head:0": "unknown data set 'head': did you mean 'heads'",
        "china": "unknown cloud 'china': give cloud:FILE",
    }
    for name, sentence in wrong.items():
        with pytest.raises(InputError, match=sentence):
            cloud_source(name, tmp_path)


def test_kinds_are_told_by_the_name() -> None:
    clouds = ["heads:0", "cloud:a.ply", "npz:a/b.npz:12"]
    images = ["china", "image:a:3", "noise:5", "noise:5x5", "skimage:camera", "heads", "heads:x", ":3"]
    assert [is_cloud_source(name) for name in clouds + images] == [True] * 3 + [False] * 8
