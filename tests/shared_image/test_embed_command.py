"""`fedstill patches embed` as a user meets it."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import fedstill
from fedstill.runtime.result import Run
from fedstill.shared_image.proxy_choice import chosen_by

pytestmark = pytest.mark.xdist_group("embed")  # so that the runs are made once

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
def call(call: Call) -> Call:
    return partial(call, "patches", "embed")


def test_early_and_late_side_by_side(call: Call, runs: dict[str, str]) -> None:
    code, out, err = call(runs["early"], runs["late"], "--json")
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


def test_the_same_picture_every_time(call: Call, runs: dict[str, str]) -> None:
    for picture in ("a.png", "b.png"):
        code, out, _ = call(runs["early"], "--out", picture)
        assert (code, out) == (0, f"drawn in {picture}\n")
    assert Path("a.png").read_bytes() == Path("b.png").read_bytes()


def test_patches_of_a_cloud(call: Call, runs: dict[str, str]) -> None:
    code, out, _ = call(runs["cloud"], "--json")
    (told,) = json.loads(out)["maps"]
    assert (code, told["shared"], told["samples"]) == (0, "patches:heads:0", 6)
    assert set(told["predicted"]) <= set(Run(runs["cloud"]).task.classes)
    assert Path("embedding.png").stat().st_size > 10_000


def test_the_patches_themselves(call: Call, runs: dict[str, str]) -> None:
    assert call(runs["early"], "--patches", "--out", "large.png")[0] == 0
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
def test_mistakes_get_a_sentence(call: Call, runs: dict[str, str], words: list[str], sentence: str) -> None:
    code, out, err = call(*(runs.get(word, word) for word in words))
    assert (code, out) == (2, "")
    assert sentence in err
    assert len(err.splitlines()) == 1
    assert not list(Path().glob("*.png"))
