"""Scenes drawn: which ones, on paper and to turn."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fedstill.core.errors import InputError
from fedstill.data.bundle import Bundle
from fedstill.detection.rooms import make_rooms
from fedstill.detection.scene_samples import choose_scenes
from fedstill.detection.scene_sets import scene_bundle
from fedstill.report.pictures.samples import show


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return scene_bundle("rooms", {"train": make_rooms(20, points=256), "test": make_rooms(2, points=256, first=20)})


def test_scenes_come_from_every_type_in_turn(bundle: Bundle) -> None:
    """Five types: of seven scenes the first two types give two, the others one; the same ones every time."""
    rows, what = choose_scenes(bundle, None, 7)
    kinds = bundle.train.columns["category"]
    assert torch.bincount(kinds[rows], minlength=5).tolist() == [2, 2, 1, 1, 1]
    assert what == "7 of 20 training scenes"
    assert torch.equal(rows, choose_scenes(bundle, None, 7)[0])
    assert len(choose_scenes(bundle, None, 99)[0]) == 20


def test_scenes_of_a_class_or_of_a_type(bundle: Bundle) -> None:
    labels, kinds = bundle.train.columns["labels"], bundle.train.columns["category"]
    beds, what = choose_scenes(bundle, "Bed", 99)
    assert set(beds.tolist()) == set((labels == 0).any(dim=1).nonzero().flatten().tolist())
    assert what == f"{len(beds)} of {len(beds)} training scenes with bed"
    offices, what = choose_scenes(bundle, "office", 99)
    assert set(offices.tolist()) == set((kinds == 3).nonzero().flatten().tolist())
    assert "of type office" in what
    with pytest.raises(InputError, match="there is no class 'offise': did you mean 'office'"):
        choose_scenes(bundle, "offise", 3)
    with pytest.raises(InputError, match="--count must be at least 1, not 0"):
        choose_scenes(bundle, None, 0)


def test_a_sheet_and_a_page(bundle: Bundle, tmp_path: Path) -> None:
    """A sheet is colourful; a page has one figure with every scene, its boxes, and a choice for each scene."""
    path = show(bundle, None, 5, tmp_path / "rooms.png")
    with Image.open(path) as image:
        wide, high = image.size
        pixels = np.asarray(image.convert("HSV"))
    assert wide > high  # more than three go two abreast
    assert (pixels[:, :, 1] > 120).mean() > 0.005
    page = show(bundle, None, 3, tmp_path / "rooms.html").read_text()
    rows, _ = choose_scenes(bundle, None, 3)
    labels = bundle.train.columns["labels"][rows]
    trace = drawn(page)
    assert [len(scene["points"]) for scene in trace["scenes"]] == [256] * 3
    assert [[box["class"] for box in scene["truth"]] for scene in trace["scenes"]] == [
        row[row >= 0].tolist() for row in labels
    ]
    kinds = sorted(labels[labels >= 0].unique().tolist())
    assert len(trace["looks"]) == len(kinds)
    for box in (box for scene in trace["scenes"] for box in scene["truth"]):
        assert kinds[box["look"]] == box["class"], "boxes have the colour of their class"
    assert page.count("<option") == 3
    assert 'name="least"' not in page, "nothing was found, so there is no score to choose"
    assert "<script src" not in page


def drawn(page: str) -> Any:
    """What the viewer of a page with one figure draws."""
    specs = re.search(r'<script type="application/json" id="specs">(.*?)</script>', page)
    assert specs is not None
    (spec,) = json.loads(specs[1]).values()
    (trace,) = spec["data"]
    return trace


def test_names_that_look_like_formulas_are_names(bundle: Bundle, tmp_path: Path) -> None:
    odd = replace(bundle, name="$_$", classes=tuple(f"US$_{name}_$" for name in bundle.classes))
    assert show(odd, None, 2, tmp_path / "rooms.png").stat().st_size > 5_000
    with pytest.raises(InputError, match="--turn must be a number of degrees, not nan"):
        show(bundle, None, 2, tmp_path / "rooms.png", turn=float("nan"))


def test_a_turn_by_a_quarter_is_a_turn(bundle: Bundle, tmp_path: Path) -> None:
    one, other, same = (tmp_path / f"{name}.png" for name in ("one", "other", "same"))
    show(bundle, None, 1, one)
    show(bundle, None, 1, other, turn=90)
    show(bundle, None, 1, same)
    assert one.read_bytes() == same.read_bytes() != other.read_bytes()


def test_scenes_that_nobody_labelled_are_drawn_without_boxes(bundle: Bundle, tmp_path: Path) -> None:
    data = bundle.train.unlabelled()
    blind = Bundle("blind", data, data, (), "scene", (256, 3))
    assert show(blind, None, 2, tmp_path / "blind.png").stat().st_size > 5_000
    (scene,) = drawn(show(blind, None, 1, tmp_path / "blind.html").read_text())["scenes"]
    assert (len(scene["points"]), scene["truth"]) == (256, [])
    with pytest.raises(InputError, match="blind has no labels to choose scenes by"):
        show(blind, "bed", 2, tmp_path / "bed.png")


def test_bad_input_is_refused(bundle: Bundle, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="z points up: leave --up out"):
        show(bundle, None, 1, tmp_path / "x.png", up="y")
    with pytest.raises(InputError, match="a page shows up to 12 scenes, not 13"):
        show(bundle, None, 13, tmp_path / "x.html")
    with pytest.raises(InputError, match="cannot be written"):
        show(bundle, None, 1, tmp_path / "nowhere" / "x.html")
    with pytest.raises(InputError, match=r"name a .png or .html file"):
        show(bundle, None, 1, tmp_path / "x.gif")
