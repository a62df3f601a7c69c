"""`fedstill data ...` as a user meets it."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

Call = Callable[..., tuple[int, str, str]]
Succeed = Callable[..., str]


def test_partitions_count_whole_clouds_by_kind(succeed: Succeed) -> None:
    words = ("data", "partition", "head-parts", "--partition", "pathological:classes_per_client=1", "--clients", "4")
    said = succeed(*words, "--out", "who.png").splitlines()
    assert said[0] == "head-parts labels every point: counted here are whole clouds, by what they show"
    assert said[1].split() == ["client", "samples", "control", "coronal", "metopic", "sagittal"]
    assert Path("who.png").stat().st_size > 5_000
    told = json.loads(succeed(*words, "--json"))
    assert (told["by"], told["classes"]) == ("kind", ["control", "coronal", "metopic", "sagittal"])
    assert sorted(told["table"], reverse=True) == [[32, 0, 0, 0], [0, 32, 0, 0], [0, 0, 32, 0], [0, 0, 0, 32]]


def test_the_table_agrees_with_the_shards_of_a_run(succeed: Succeed) -> None:
    """`data partition` shows what a run with the same settings would deal out."""
    from fedstill.runtime.assemble import make_experiment
    from fedstill.runtime.plan import make_plan

    cut = {"name": "dirichlet", "alpha": 0.3}
    plan = make_plan(make_experiment({"method": "fedavg", "data": "head-parts", "clients": 3, "partition": cut}))
    words = ("--partition", "dirichlet:alpha=0.3", "--clients", "3", "--json")
    table = json.loads(succeed("data", "partition", "head-parts", *words))["table"]
    assert [sum(row) for row in table] == plan.clients.shards.sizes().tolist()


def test_checking_counts_points_and_clouds(succeed: Succeed) -> None:
    said = succeed("data", "check", "head-parts").splitlines()
    assert said[1].endswith("7 classes of points")
    assert said[2].split() == ["points", "of", "train", "test"]
    assert said[10].split() == ["clouds", "128", "32"]


TINY = ["--rounds", "2", "--clients", "4", "--set", "epochs=1", "--set", "batch=64"]


def answer(succeed: Succeed, *words: str) -> Any:
    return json.loads(succeed(*words, "--json"))


def test_list_check_partition_and_add(succeed: Succeed) -> None:
    listed = answer(succeed, "data", "list", "--data-root", ".")
    assert {"digits", "heads", "mnist"} <= {entry["name"] for entry in listed}
    assert answer(succeed, "data", "check", "digits")["sizes"] == {"train": 1438, "test": 359}
    words = ("--partition", "label-skew", "--clients", "5", "--out", "p.png")
    table = answer(succeed, "data", "partition", "heads", *words)
    assert np.array(table["table"]).T.tolist() == [
        [64, 16, 0, 0, 0],
        [0, 48, 32, 0, 0],
        [0, 0, 32, 48, 0],
        [0, 0, 0, 16, 64],
    ]
    assert Path("p.png").stat().st_size > 5_000
    np.savez("own.npz", x=np.random.default_rng(0).integers(0, 255, (40, 8, 8), dtype=np.uint8), y=np.arange(40) % 2)
    succeed("data", "add", "own", "own.npz", "--data-root", ".")
    assert answer(succeed, "run", "fedavg", "--data", "own", "--data-root", ".", *TINY)["data"] == "own"
    assert answer(succeed, "run", "fedavg", "--data", "npz:own.npz", *TINY)["rounds"] == 2


@pytest.fixture
def drawn(call: Call) -> Call:
    """`fedstill data show` in a folder with one archive of clouds."""
    clouds = np.random.default_rng(0).normal(size=(20, 50, 3))
    np.savez("mine.npz", x=clouds, y=np.arange(20) % 2, classes=np.array(["cup", "pan"]))
    return partial(call, "data", "show")


def test_clouds_as_a_picture_and_as_a_page(drawn: Call) -> None:
    assert drawn("npz:mine.npz", "--class", "pan") == (0, "drawn in mine-pan.png\n", "")
    with Image.open("mine-pan.png") as image:
        assert image.width > 800
    code, out, _ = drawn("npz:mine.npz", "--count", "2", "--up", "y", "--turn", "90", "--out", "page.html", "--json")
    assert code == 0
    assert json.loads(out) == {"data": "npz:mine.npz", "classes": ["cup", "pan"], "picture": "page.html"}
    page = Path("page.html").read_text()
    assert page.count("<canvas") == 4
    assert 'querySelectorAll("canvas.cloud")' in page  # with everything it needs


def test_digits_as_a_contact_sheet(drawn: Call) -> None:
    assert drawn("digits", "--count", "3", "--out", "ten.png") == (0, "drawn in ten.png\n", "")
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
def test_mistakes_get_a_sentence(drawn: Call, words: list[str], sentence: str) -> None:
    code, out, err = drawn(*words)
    assert (code, out) == (2, "")
    assert sentence in err
    assert len(err.splitlines()) == 1
