"""Data with a label for every point, and a model of it, as a user meets them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import fedstill
from fedstill.data.point_labels import PARTS

Call = Callable[..., str]


def test_partitions_count_whole_clouds_by_kind(succeed: Call) -> None:
    words = ("data", "partition", "head-parts", "--partition", "pathological:classes_per_client=1", "--clients", "4")
    said = succeed(*words, "--out", "who.png").splitlines()
    assert said[0] == "head-parts labels every point: counted here are whole clouds, by what they show"
    assert said[1].split() == ["client", "samples", "control", "coronal", "metopic", "sagittal"]
    assert Path("who.png").stat().st_size > 5_000
    told = json.loads(succeed(*words, "--json"))
    assert (told["by"], told["classes"]) == ("kind", ["control", "coronal", "metopic", "sagittal"])
    assert sorted(told["table"], reverse=True) == [[32, 0, 0, 0], [0, 32, 0, 0], [0, 0, 32, 0], [0, 0, 0, 32]]


def test_the_table_agrees_with_the_shards_of_a_run(succeed: Call) -> None:
    """`data partition` shows what a run with the same settings would deal out."""
    from fedstill.runtime.assemble import make_experiment
    from fedstill.runtime.plan import make_plan

    cut = {"name": "dirichlet", "alpha": 0.3}
    plan = make_plan(make_experiment({"method": "fedavg", "data": "head-parts", "clients": 3, "partition": cut}))
    words = ("--partition", "dirichlet:alpha=0.3", "--clients", "3", "--json")
    table = json.loads(succeed("data", "partition", "head-parts", *words))["table"]
    assert [sum(row) for row in table] == plan.clients.shards.sizes().tolist()


def test_checking_counts_points_and_clouds(succeed: Call) -> None:
    said = succeed("data", "check", "head-parts").splitlines()
    assert said[1].endswith("7 classes of points")
    assert said[2].split() == ["points", "of", "train", "test"]
    assert said[10].split() == ["clouds", "128", "32"]


def test_predictions_are_parts(succeed: Call, tmp_path: Path) -> None:
    sizes = {"points": 32, "clients": 2, "rounds": 1}
    run = fedstill.run("fedavg", data="head-parts", out=tmp_path, training={"epochs": 1}, **sizes)
    cloud = np.random.default_rng(0).normal(size=(40, 3))
    np.save("a.npy", cloud)
    np.save("b.npy", 2 * cloud + np.array([5, 0, 0]))
    told = json.loads(succeed("predict", str(run.path), "a.npy", "b.npy", "--json"))
    assert told["classes"] == list(PARTS)
    for answer in told["predictions"]:
        assert answer["counts"] == {part: answer["labels"].count(number) for number, part in enumerate(PARTS)}
        assert len(answer["labels"]) == len(answer["points"]) == 32
        assert np.linalg.norm(answer["points"], axis=1).max() == pytest.approx(1, rel=1e-6)
    said = succeed("predict", str(run.path), "a.npy").splitlines()
    assert said[0].split() == ["file", "part", "points", "share"]
    first = told["predictions"][0]["counts"]
    assert {line.split()[1]: int(line.split()[2]) for line in said[1:]} == {k: v for k, v in first.items() if v}
