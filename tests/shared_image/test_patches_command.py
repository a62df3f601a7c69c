"""`fedstill patches embed` and `fedstill patches show` as a user meets them."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import fedstill
from fedstill.runtime.result import Run
from fedstill.shared_image.patches import PatchSettings, make_patches
from fedstill.shared_image.proxy_choice import chosen_by

Call = Callable[..., tuple[int, str, str]]

TINY: dict[str, Any] = {"data": "digits", "model": "mlp", "clients": 2, "training": {"epochs": 1, "batch": 64}}
IMAGE: dict[str, Any] = {
    "name": "single-image",
    "image": "china",
    "patches": {"count": 60},
    "samples": 20,
    "steps": 2,
    "batch": 16,
    "selection": {"kmeans": 4, "prune": 0.5},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Early and late, one whose clients share nothing, and one of clouds, of other classes."""
    out = tmp_path_factory.mktemp("runs")
    cloud = {**IMAGE, "image": "heads:0", "samples": 6, "selection": None}
    given: dict[str, dict[str, Any]] = {
        "early": {"method": IMAGE, "rounds": 1},
        "late": {"method": IMAGE, "rounds": 2},
        "plain": {"method": "fedavg", "rounds": 1},
        "cloud": {"method": cloud, "rounds": 1, "data": "heads", "model": "pointnet-tiny", "points": 32},
    }
    return {name: str(fedstill.run({**TINY, **one}, out=out).path) for name, one in given.items()}


@pytest.fixture
def embed(call: Call) -> Call:
    return partial(call, "patches", "embed")


def test_early_and_late_side_by_side(embed: Call, runs: dict[str, str]) -> None:
    code, out, err = embed(runs["early"], runs["late"], "--json")
    assert (code, err) == (0, "")
    told = json.loads(out)
    assert [one["round"] for one in told["maps"]] == [1, 2]
    late = Run(runs["late"])
    counted = {str(kind): int((chosen_by(late).classes == kind).sum()) for kind in range(10)}
    assert told["maps"][1] == {
        "run": runs["late"],
        "shared": "patches:china",
        "round": 2,
        "accuracy": late.accuracy,
        "samples": 20,
        "pool": 60,
        "predicted": {kind: count for kind, count in counted.items() if count},
    }
    with Image.open(told["picture"]) as picture:
        assert picture.width == 2 * 720  # two panels of 4.5 inches at 160 dots


def test_the_same_picture_every_time(embed: Call, runs: dict[str, str]) -> None:
    for picture in ("a.png", "b.png"):
        code, out, _ = embed(runs["early"], "--out", picture)
        assert (code, out) == (0, f"drawn in {picture}\n")
    assert Path("a.png").read_bytes() == Path("b.png").read_bytes()


def test_patches_of_a_cloud(embed: Call, runs: dict[str, str]) -> None:
    code, out, _ = embed(runs["cloud"], "--json")
    (told,) = json.loads(out)["maps"]
    assert (code, told["shared"], told["samples"]) == (0, "patches:heads:0", 6)
    assert set(told["predicted"]) <= set(Run(runs["cloud"]).task.classes)
    assert Path("embedding.png").stat().st_size > 10_000


def test_the_patches_themselves(embed: Call, runs: dict[str, str]) -> None:
    assert embed(runs["early"], "--patches", "--out", "large.png")[0] == 0
    with Image.open("large.png") as picture:
        assert picture.width == 1040


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["plain"], "asks nobody about samples that all have: give a run of one of feddf,"),
        (["early", "cloud"], "know different classes: draw them one by one"),
        (["cloud", "--patches"], "heads:0 is cut into clouds, which cannot be drawn that small: leave --patches out"),
        (["nowhere"], "nowhere is not a run"),
        (["early", "--out", "a.gif"], "name a .png file"),
        (["early", "--out", "none/a.png"], "there is no folder none"),
        (["early", "--which", "selected"], "no validation share was set"),
        (["early", "--which", "lost"], "unknown model 'lost'"),
        (["early", "--client", "0"], "client 0 has no model of its own"),
        (["early"] * 10, "name one to 9 runs, not 10"),
        (["early", "--seed", "-1"], "--seed must be at least 0"),
    ],
    ids=lambda value: "-".join(value[:3]) if isinstance(value, list) else "",
)
def test_mistakes_get_a_sentence(embed: Call, runs: dict[str, str], words: list[str], sentence: str) -> None:
    code, out, err = embed(*(runs.get(word, word) for word in words))
    assert (code, out) == (2, "")
    assert sentence in err
    assert len(err.splitlines()) == 1
    assert not list(Path().glob("*.png"))


@pytest.fixture
def show(call: Call) -> Call:
    Image.fromarray(np.zeros((30, 40, 3), np.uint8)).save("small.png")
    Path("bad.png").write_bytes(b"no picture")
    return partial(call, "patches", "show")


def test_patches_beside_their_image(show: Call) -> None:
    code, out, err = show("noise:96x80", "--size", "16", "--count", "9", "--seed", "2")
    pool = make_patches("noise:96x80", (3, 16, 16), "image", PatchSettings(seed=2))
    assert (code, err) == (0, "")
    assert out == f"drawn in patches.png; pool {pool.fingerprint()[:16]}…\n"
    with Image.open("patches.png") as sheet:
        assert sheet.width > sheet.height > 500


def test_grey_patches_and_what_other_programs_read(show: Call) -> None:
    code, out, _ = show("china", "--grey", "--count", "4", "--out", "a.png", "--json")
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


def test_the_first_patches_of_a_cloud(show: Call) -> None:
    np.save("thing.npy", np.random.default_rng(0).normal(size=(300, 3)))
    assert show("cloud:thing.npy", "--size", "60", "--count", "3", "--out", "c.png")[0] == 0
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
def test_invalid_sources_get_a_sentence(show: Call, words: list[str], sentence: str) -> None:
    code, out, err = show(*words)
    assert (code, out) == (2, "")
    assert sentence in err
    assert len(err.splitlines()) == 1
