from __future__ import annotations

import json
import re
import shutil
import subprocess
from base64 import b64encode
from dataclasses import replace
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fedstill.core.dataset import ArrayDataset, Subset
from fedstill.core.errors import InputError
from fedstill.data.bundle import Bundle
from fedstill.data.clouds import normalise
from fedstill.report.pictures.cloud_views import normals_and_spacing, seen, upright
from fedstill.report.pictures.gallery import choose, lay_out
from fedstill.report.pictures.samples import show

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def clouds(classes: int = 3, each: int = 5, points: int = 60) -> Bundle:
    values = np.random.default_rng(0).normal(size=(classes * each, points, 3)).astype(np.float32)
    data = ArrayDataset(
        inputs=torch.from_numpy(normalise(values)), labels=torch.arange(classes).repeat_interleave(each)
    )
    return Bundle("toy", data, data, tuple(f"Kind {n}" for n in range(classes)), "cloud", (points, 3))


def labelled() -> Bundle:
    """Two kinds of things in turn, one with the parts 0 and 2, one with 1 and 3; the last points are labels only."""
    values = np.random.default_rng(0).normal(size=(8, 60, 3)).astype(np.float32)
    kinds = torch.arange(8) % 2
    marks = kinds.unsqueeze(1) + 2 * (torch.arange(64) // 32)
    data = ArrayDataset(inputs=torch.from_numpy(normalise(values)), labels=marks, category=kinds)
    return Bundle("parts", data, data, ("blade", "lid", "grip", "ear"), "cloud", (60, 3), categories=("knife", "pot"))


def images(channels: int = 3) -> Bundle:
    pixels = np.random.default_rng(0).integers(0, 256, (12, channels, 9, 7), dtype=np.uint8)
    data = ArrayDataset(inputs=torch.from_numpy(pixels), labels=torch.arange(12) % 2)
    return Bundle("pictures", data, data, ("cat", "T-shirt/top"), "image", (channels, 9, 7))


def colours(path: Path) -> int:
    with Image.open(path) as image:
        return len(image.convert("RGB").getcolors(1 << 24) or [])


def test_samples_are_spread_over_the_class_and_always_the_same() -> None:
    bundle = clouds(each=9)
    gallery = choose(bundle, "kind 1", 3)
    assert list(gallery.samples) == ["Kind 1"]
    inputs = bundle.train.columns["inputs"]
    assert torch.equal(gallery.samples["Kind 1"], inputs[[9, 13, 17]])
    assert [len(samples) for samples in choose(bundle, None, 99).samples.values()] == [9, 9, 9]
    assert gallery.about == "class Kind 1 · 9 training samples · 60 points"


def test_one_class_is_seen_from_three_sides_and_many_in_columns() -> None:
    views = ("above", "front", "side")
    one = lay_out(choose(clouds(), "Kind 0", 2), views, "corner", 0.05)
    assert [(cell.row, cell.view) for cell in one.cells[:3]] == [(0, "above"), (1, "front"), (2, "side")]
    assert [label.text for label in one.labels] == list(views)
    many = lay_out(choose(clouds(classes=40, each=2), None, 2), views, "corner", 0.05)
    assert len(many.cells) == 80
    assert many.height <= 1.3 * many.width
    assert len({(cell.column, cell.row) for cell in many.cells}) == 80
    wide = lay_out(choose(clouds(each=20), "Kind 0", 20), views, "corner", 0.05)
    assert wide.width < 10


def test_points_with_labels_are_shown_by_kind_and_part() -> None:
    both = choose(labelled(), None, 2)
    assert list(both.samples) == ["knife", "pot"]
    assert both.about == "2 kinds · 8 training samples · 60 points · colours are parts, of each kind its own"
    assert {name: marks.names for name, marks in both.marks.items()} == {
        "knife": ("blade", "grip"),
        "pot": ("lid", "ear"),
    }
    assert torch.equal(both.marks["pot"].points, (torch.arange(60) // 32).expand(2, 60))
    assert (both.legend, both.parts) == ((), 2), "the second colour is a grip here and an ear there"
    one = choose(labelled(), "Pot", 3)
    assert (one.legend, one.about) == (("lid", "ear"), "kind pot · 4 training samples · 60 points")
    cells = lay_out(one, ("above", "front"), "corner", 0.05).cells
    assert all(torch.equal(cell.marks, one.marks["pot"].points[0]) for cell in cells if cell.marks is not None)
    assert all(cell.marks is not None for cell in cells)
    assert all(cell.marks is None for cell in lay_out(choose(clouds(), None, 2), ("above",), "corner", 0.05).cells)
    with pytest.raises(InputError, match="there is no class 'lid'"):
        choose(labelled(), "lid", 1)
    data = labelled()
    pots = Subset(data.train, torch.tensor([1, 3, 5]))
    partial = Bundle("parts", pots, data.test, data.classes, "cloud", (60, 3), categories=data.categories)
    assert list(choose(partial, None, 2).samples) == ["pot"]
    with pytest.raises(InputError, match="parts has no training samples of knife"):
        choose(partial, "knife", 2)


def specs(page: Path) -> dict[str, Any]:
    """What the viewer on a page draws, by figure."""
    found = re.search(r'<script type="application/json" id="specs">(.*?)</script>', page.read_text(encoding="utf-8"))
    assert found is not None
    drawn: dict[str, Any] = json.loads(found[1])
    return drawn


def hues(path: Path) -> set[int]:
    """The hues of strong colours, in steps of thirty degrees, that cover more than a few dots."""
    with Image.open(path) as image:
        hue, saturation, _ = np.moveaxis(np.asarray(image.convert("HSV")).reshape(-1, 3), 1, 0)
    counts = np.bincount(hue[saturation > 120].astype(np.int64) * 12 // 256, minlength=12)
    return set(np.flatnonzero(counts > 200).tolist())


def test_parts_have_colours_of_their_own(tmp_path: Path) -> None:
    """The first colour is a blue of 196 degrees, the second an orange of 41."""
    assert hues(show(clouds(), None, 3, tmp_path / "whole.png")) == {6}
    assert hues(show(labelled(), None, 3, tmp_path / "parts.png")) == {1, 6}
    drawn = specs(show(labelled(), None, 3, tmp_path / "parts.html"))
    assert list(drawn) == [f"cloud-{kind}-{sample}" for kind in range(2) for sample in range(3)]
    for spec in drawn.values():
        (trace,) = spec["data"]
        assert len(trace["colours"]) == 2 * 16, "steps of light for each of the two parts"
        assert {label // 16 for label in trace["labels"]} == {0, 1}
    page = (tmp_path / "parts.html").read_text(encoding="utf-8")
    assert all(page.count(f"</svg>\n{part}</span>") == 3 for part in labelled().classes), "a key for each sample"


def test_views_by_hand() -> None:
    cloud = np.array([[1.0, 2.0, 3.0]])
    normal = np.array([[0.0, 0.0, -1.0]])
    for view, paper, depth in (("above", [1, 2], 3), ("front", [-1, 3], 2), ("side", [2, 3], 1)):
        at, near, _ = seen(cloud, normal, view)
        assert at[0] == pytest.approx(paper)
        assert near[0] == pytest.approx(depth)
    assert upright(cloud, "y", 180) == pytest.approx(np.array([[-1, 3, 2]]))
    plane = np.column_stack([np.random.default_rng(0).uniform(-1, 1, (200, 2)), np.zeros(200)])
    normals, spacing = normals_and_spacing(plane)
    assert np.abs(normals[:, 2]) == pytest.approx(1)
    assert 0.02 < spacing < 0.3


@pytest.mark.parametrize("wanted", [None, "Kind 2"])
def test_a_sheet_of_clouds(tmp_path: Path, wanted: str | None) -> None:
    path = show(clouds(), wanted, 4, tmp_path / "sheet.png")
    assert colours(path) > 300


@pytest.mark.parametrize(("channels", "wanted"), [(1, None), (3, "cat")])
def test_a_contact_sheet_of_images(tmp_path: Path, channels: int, wanted: str | None) -> None:
    assert colours(show(images(channels), wanted, 3, tmp_path / "sheet.png")) > 50


def test_clouds_of_very_few_points_are_drawn(tmp_path: Path) -> None:
    assert show(clouds(points=2), None, 1, tmp_path / "sheet.png").stat().st_size > 1000


def test_names_that_look_like_formulas_or_elements_are_names(tmp_path: Path) -> None:
    for bundle in (images(), clouds(), labelled()):
        names = tuple(f"US$_{number}_$" for number in range(len(bundle.classes)))
        odd = replace(bundle, name="$_$", classes=names, categories=names[: len(bundle.categories)])
        assert colours(show(odd, None, 2, tmp_path / "sheet.png")) > 50
    bundle = replace(clouds(), classes=("<i>a</i>", "b & c", "d"))
    page = show(bundle, None, 1, tmp_path / "page.html").read_text(encoding="utf-8")
    assert re.findall(r'<h2 id="class-\d">(.*?)</h2>', page) == [escape(name) for name in bundle.classes]


@pytest.mark.skipif(CHROMIUM is None, reason="no browser found: install chromium to test the drawn page")
@pytest.mark.parametrize(
    ("scheme", "paper"), [(0, "rgb(18, 25, 29)"), (1, "rgb(246, 248, 248)")], ids=["dark", "light"]
)
def test_a_browser_draws_a_page_in_its_readers_colours(tmp_path: Path, scheme: int, paper: str) -> None:
    page = show(clouds(), None, 1, tmp_path / "page.html")
    text = page.read_text(encoding="utf-8")
    check = """const drawn = [...document.querySelectorAll("canvas")];
        document.title = getComputedStyle(document.body).backgroundColor + drawn.map((canvas) =>
            canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.some(Boolean));"""
    digest = b64encode(sha256(check.encode()).digest()).decode()
    text = text.replace("script-src ", f"script-src 'sha256-{digest}' ", 1)
    page.write_text(text.replace("</body>", f"<script>{check}</script></body>"), encoding="utf-8")
    done = subprocess.run(
        [
            *(
                str(CHROMIUM),
                "--headless",
                "--no-sandbox",
                "--disable-dev-shm-usage",
                "--disable-background-networking",
            ),
            *("--virtual-time-budget=5000", f"--user-data-dir={tmp_path / 'profile'}"),
            *(f"--blink-settings=preferredColorScheme={scheme}", "--dump-dom", page.as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    drawn = re.search(r"<title>(.*?)</title>", done.stdout)
    assert drawn is not None
    assert drawn[1] == f"{paper}true,true,true"


def test_a_page_to_turn(tmp_path: Path) -> None:
    bundle = clouds(each=9)
    bundle = Bundle("<b>&", bundle.train, bundle.test, bundle.classes, "cloud", bundle.shape)
    path = show(bundle, None, 9, tmp_path / "page.html")
    page = path.read_text(encoding="utf-8")
    assert "<title>&lt;b&gt;&amp;</title>" in page
    assert page.count('<canvas class="cloud"') == len(specs(path)) == 18  # six of each class
    assert all(len(spec["data"][0]["points"]) == bundle.shape[0] for spec in specs(path).values())
    assert "<script src" not in page  # nothing is fetched
    assert "Plotly" not in page.partition('id="specs"')[0]
    assert page.count("<h2") == 3
    one = show(bundle, "Kind 1", 2, tmp_path / "one.html").read_text(encoding="utf-8")
    assert (one.count("<h2"), one.count('<canvas class="cloud"')) == (1, 2)


def test_the_name_of_the_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert show(images(), "T-shirt/top") == Path("pictures-t-shirt-top.png")
    assert show(images()) == Path("pictures.png")
    assert {path.name for path in tmp_path.iterdir()} == {"pictures.png", "pictures-t-shirt-top.png"}


def test_what_cannot_be_shown_is_said(tmp_path: Path) -> None:
    for bundle, settings, sentence in (
        (clouds(), {"wanted": "Kind 7"}, "there is no class 'Kind 7': did you mean"),
        (clouds(), {"count": 0}, "--count must be at least 1"),
        (clouds(), {"out": tmp_path / "a.pdf"}, r"a.pdf: name a .png or .html file"),
        (images(), {"out": tmp_path / "a.html"}, "pictures holds images, which are drawn as .png"),
        (clouds(), {"turn": float("nan")}, "--turn must be a number of degrees, not nan"),
        (clouds(), {"turn": float("inf"), "out": tmp_path / "a.html"}, "--turn must be a number of degrees, not inf"),
        (clouds(), {"up": "w"}, "--up must be x, y or z, not 'w'"),
        (clouds(), {"out": tmp_path / "no" / "a.png"}, r"a.png cannot be written"),
        (clouds(), {"out": tmp_path / "no" / "a.html"}, r"a.html cannot be written"),
    ):
        settings = {"out": tmp_path / "a.png", **settings}
        with pytest.raises(InputError, match=sentence):
            show(bundle, **settings)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())
