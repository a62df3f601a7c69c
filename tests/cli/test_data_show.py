"""`fedstill data show` as a user meets it."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(call: Call) -> Call:
    """`fedstill data show` in a folder with one archive of clouds."""
    clouds = np.random.default_rng(0).normal(size=(20, 50, 3))
    np.savez("mine.npz", x=clouds, y=np.arange(20) % 2, classes=np.array(["cup", "pan"]))
    return partial(call, "data", "show")


def test_clouds_as_a_picture_and_as_a_page(call: Call) -> None:
    assert call("npz:mine.npz", "--class", "pan") == (0, "drawn in mine-pan.png\n", "")
    with Image.open("mine-pan.png") as image:
        assert image.width > 800
    code, out, _ = call("npz:mine.npz", "--count", "2", "--up", "y", "--turn", "90", "--out", "page.html", "--json")
    assert code == 0
    assert json.loads(out) == {"data": "npz:mine.npz", "classes": ["cup", "pan"], "picture": "page.html"}
    page = Path("page.html").read_text()
    assert page.count("<canvas") == 4
    assert 'querySelectorAll("canvas.cloud")' in page  # with everything it needs


def test_digits_as_a_contact_sheet(call: Call) -> None:
    assert call("digits", "--count", "3", "--out", "ten.png") == (0, "drawn in ten.png\n", "")
    assert Path("ten.png").stat().st_size > 5_000


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["npz:mine.npz", "--class", "cups"], "there is no class 'cups': did you mean 'cup'?"),
        (["npz:mine.npz", "--out", "a.gif"], "name a .png or .html file"),
        (["npz:mine.npz", "--up", "north"], "--up must be x, y or z"),
        (["digits", "--out", "a.html"], "drawn as .png"),
        (["modelnet10", "--data-root", "."], "holds none of modelnet10"),
    ],
)
def test_mistakes_get_a_sentence(call: Call, words: list[str], sentence: str) -> None:
    code, out, err = call(*words)
    assert (code, out) == (2, "")
    assert sentence in err
    assert len(err.splitlines()) == 1
