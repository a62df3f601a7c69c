"""Image files of every depth, see-through or turned: the same pixels wherever they are read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedstill.core.errors import InputError
from fedstill.data.catalogue import check, load
from fedstill.data.readers.pictures import decode, header

BYTES = np.random.default_rng(0).integers(0, 256, (5, 7), dtype=np.uint8)
COLOURS = np.random.default_rng(1).integers(0, 256, (5, 7, 3), dtype=np.uint8)


def saved(path: Path, pixels: np.ndarray, **options: object) -> Path:
    Image.fromarray(pixels).save(path, **options)
    return path


@pytest.mark.parametrize("suffix", ["png", "tif", "pgm"])
def test_sixteen_bits_are_scaled_by_their_range_and_never_by_the_image(tmp_path: Path, suffix: str) -> None:
    """257 times a byte is that byte; 128 of 257 is rounded down, 129 up."""
    deep = BYTES.astype(np.uint16) * 257
    assert np.array_equal(decode(saved(tmp_path / f"a.{suffix}", deep), "L"), BYTES)
    dark = np.array([[0, 128, 129, 257, 514]], np.uint16)
    assert decode(saved(tmp_path / f"b.{suffix}", dark), "L").tolist() == [[0, 0, 1, 1, 2]]
    assert decode(tmp_path / f"b.{suffix}", "RGB").tolist() == [[[v, v, v] for v in (0, 0, 1, 1, 2)]]


def test_big_endian_sixteen_bits(tmp_path: Path) -> None:
    """A TIFF written by hand: Pillow writes none of this kind."""
    tags = [(256, 7), (257, 5), (258, 16), (259, 1), (262, 1), (273, 8), (277, 1), (278, 5), (279, 70)]
    pixels = (BYTES.astype(">u2") * 257).astype(">u2").tobytes()
    entries = b"".join(
        tag.to_bytes(2, "big") + b"\0\3\0\0\0\1" + value.to_bytes(2, "big") + b"\0\0" for tag, value in tags
    )
    file = b"MM\0\x2a" + (8 + len(pixels)).to_bytes(4, "big") + pixels
    (tmp_path / "a.tif").write_bytes(file + len(tags).to_bytes(2, "big") + entries + bytes(4))
    assert header(tmp_path / "a.tif") == ((7, 5), "I;16B")
    assert np.array_equal(decode(tmp_path / "a.tif", "L"), BYTES)


def test_floats_go_from_black_to_white(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.tif", np.array([[0, 0.25, 1]], np.float32))
    assert decode(path, "L").tolist() == [[0, 64, 255]]
    for wrong, sentence in (
        (np.array([[0, 254.5]], np.float32), "holds floats from 0 to 254.5, and black to white are 0 to 1"),
        (np.array([[0, np.nan]], np.float32), "holds pixels that are NaN or infinite"),
        (np.array([[-1, 70000]], np.int32), "holds whole numbers from -1 to 70000, and black to white are 0 to 65535"),
    ):
        path = saved(tmp_path / "b.tif", wrong)
        with pytest.raises(InputError, match=sentence):
            decode(path, "L")
    with pytest.raises(InputError, match="NaN or infinite"):
        decode(saved(tmp_path / "c.tif", np.array([[0, np.nan]], np.float32)), "RGB", alone=True)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("suffix", ["png", "tif", "webp"])
def test_pictures_are_turned_as_the_camera_says(tmp_path: Path, orientation: int, suffix: str) -> None:
    """By the standard's table of where row 0 and column 0 of the file belong."""
    flipped, turned = np.fliplr(COLOURS), np.rot90(COLOURS, 2)
    by_hand = {
        1: COLOURS,
        2: flipped,
        3: turned,
        4: np.flipud(COLOURS),
        5: COLOURS.transpose(1, 0, 2),
        6: np.rot90(COLOURS, -1),
        7: turned.transpose(1, 0, 2),
        8: np.rot90(COLOURS),
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = saved(tmp_path / f"a.{suffix}", COLOURS, exif=exif, **({"lossless": True} if suffix == "webp" else {}))
    assert header(path)[0] == (by_hand.shape[1], by_hand.shape[0])
    assert np.array_equal(decode(path, "RGB"), by_hand)


def test_a_camera_that_says_nonsense_is_not_listened_to(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.png", COLOURS, exif=b"Exif\0\0 no header at all")
    assert header(path)[0] == (7, 5)
    assert np.array_equal(decode(path, "RGB"), COLOURS)


def test_what_is_transparent_is_white_and_what_is_not_stays(tmp_path: Path) -> None:
    seen = np.full((5, 7), 255, np.uint8)
    seen[0] = 0
    found = decode(saved(tmp_path / "rgba.png", np.dstack([COLOURS, seen])), "RGB")
    assert (found[0] == 255).all()
    assert np.array_equal(found[1:], COLOURS[1:])
    found = decode(saved(tmp_path / "la.png", np.dstack([BYTES, seen])), "L")
    assert (found[0] == 255).all()
    assert np.array_equal(found[1:], BYTES[1:])


def test_eight_bits_are_what_they_are(tmp_path: Path) -> None:
    assert np.array_equal(decode(saved(tmp_path / "l.png", BYTES), "L"), BYTES)
    assert np.array_equal(decode(saved(tmp_path / "rgb.png", COLOURS), "RGB"), COLOURS)
    Image.fromarray(COLOURS).quantize(4).save(tmp_path / "p.gif")
    with Image.open(tmp_path / "p.gif") as plain:
        assert np.array_equal(decode(tmp_path / "p.gif", "RGB"), np.asarray(plain.convert("RGB")))
    frames = [Image.fromarray(COLOURS), Image.fromarray(255 - COLOURS)]
    frames[0].save(tmp_path / "moving.webp", save_all=True, append_images=frames[1:], lossless=True)
    assert np.array_equal(decode(tmp_path / "moving.webp", "RGB"), COLOURS)  # the first of several


def test_a_folder_of_scans_with_sixteen_bits_keeps_what_they_show(tmp_path: Path) -> None:
    for number in range(5):
        for kind, step in (("ill", 9000), ("well", 3000)):
            (tmp_path / kind).mkdir(exist_ok=True)
            saved(tmp_path / kind / f"{number}.png", np.full((4, 6), step * (number + 1), np.uint16))
    bundle = load(f"folder:{tmp_path}")
    shades = sorted(
        {*bundle.train.columns["inputs"].unique().tolist(), *bundle.test.columns["inputs"].unique().tolist()}
    )
    assert shades == sorted({int(step * number / 257 + 0.5) for step in (9000, 3000) for number in range(1, 6)})
    assert check(f"folder:{tmp_path}").range == (12, 175)


def test_photos_on_their_side_are_counted_as_they_are_shown(tmp_path: Path) -> None:
    """Four wide pictures and one that was taken upright: nothing is resized."""
    exif = Image.Exif()
    exif[0x0112] = 6
    for kind in ("a", "b"):
        (tmp_path / kind).mkdir()
        for number in range(4):
            saved(tmp_path / kind / f"{number}.png", COLOURS)
        saved(tmp_path / kind / "upright.png", np.rot90(COLOURS).copy(), exif=exif)
    report = check(f"folder:{tmp_path}")
    assert report.shapes["train"] == (3, 5, 7)
    assert "resized" not in str(report.notes)
