"""`fedstill patches show` as a user meets it."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedstill.shared_image.patches import PatchSettings, make_patches

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(call: Call) -> Call:
    Image.fromarray(np.zeros((30, 40, 3), np.uint8)).save("small.png")
    Path("bad.png").write_bytes(b"no picture")
    return partial(call, "patches", "show")


def test_patches_beside_their_image(call: Call) -> None:
    code, out, err = call("noise:96x80", "--size", "16", "--count", "9", "--seed", "2")
    pool = make_patches("noise:96x80", (3, 16, 16), "image", PatchSettings(seed=2))
    assert (code, err) == (0, "")
    assert out == f"drawn in patches.png; pool {pool.fingerprint()[:16]}…\n"
    with Image.open("patches.png") as sheet:
        assert sheet.width > sheet.height > 500


def test_grey_patches_and_what_other_programs_read(call: Call) -> None:
    code, out, _ = call("china", "--grey", "--count", "4", "--out", "a.png", "--json")
    pool = make_patches("china", (1, 32, 32), "image")
    assert code == 0
    assert json.loads(out) == {
        "source": "china",
        "source_digest": pool.source_digest,
        "fingerprint": pool.fingerprint(),
        "patches": 4,
        "picture": "a.png",
    }
    assert Path("a.png").stat().st_size > 50_000


def test_patches_of_a_cloud(call: Call) -> None:
    np.save("thing.npy", np.random.default_rng(0).normal(size=(300, 3)))
    assert call("cloud:thing.npy", "--size", "60", "--count", "3", "--out", "c.png")[0] == 0
    assert Path("c.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["image:small.png"], "an image of 40 x 30 pixels is too small for patches of 32 x 32"),
        (["image:bad.png"], "bad.png is no image that Pillow can read"),
        (["image:none.png"], "there is no file none.png"),
        (["chine"], "did you mean 'china'?"),
        (["noise:90x90", "--out", "a.gif"], "name a .png file"),
        (["noise:90x90", "--count", "0"], "--count must be at least 1"),
        (["noise:90x90", "--count", "1", "--out", "none/a.png"], "none/a.png cannot be written"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else "",
)
def test_mistakes_get_a_sentence(call: Call, words: list[str], sentence: str) -> None:
    code, out, err = call(*words)
    assert (code, out) == (2, "")
    assert sentence in err
    assert len(err.splitlines()) == 1
