"""Scenes as a user meets them: counted by boxes, dealt out, drawn."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedstill.data.catalogue import load
from fedstill.detection import scene_sets
from fedstill.detection.rooms import CLASSES

Call = Callable[..., str]


@pytest.fixture(autouse=True)
def _few_rooms(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The first 20 rooms to train on and four to test on."""
    monkeypatch.setenv("FEDSTILL_CACHE", str(tmp_path_factory.getbasetemp() / "few-rooms"))
    monkeypatch.setattr(scene_sets, "TRAINING_ROOMS", 20)
    monkeypatch.setattr(scene_sets, "TEST_ROOMS", 4)


def test_checking_counts_boxes_and_scenes(succeed: Call) -> None:
    said = succeed("data", "check", "rooms").splitlines()
    assert said[1].startswith("scenes of shape 2048x3, float32")
    assert said[1].endswith("10 classes of boxes")
    assert said[2].split() == ["boxes", "of", "train", "test"]
    labels = load("rooms").train.labels()
    assert labels is not None
    assert said[3].split()[:2] == ["bed", str(int((labels == 0).sum()))]
    assert said[13].split() == ["scenes", "20", "4"]
    told = json.loads(succeed("data", "check", "rooms", "--json"))
    assert (told["counted"], told["kind"], told["sizes"]) == ("boxes", "scene", {"train": 20, "test": 4})


def test_partitions_count_boxes_and_say_that_shards_overlap(succeed: Call) -> None:
    words = ("data", "partition", "rooms", "--partition", "class-subset:most=8", "--clients", "4")
    said = succeed(*words, "--out", "who.png").splitlines()
    assert said[0] == "rooms has boxes: counted are these, by class; scenes lie with several clients"
    assert said[1].split()[:3] == ["client", "scenes", "bed"]
    assert [line.split()[1] for line in said[2:6]] == ["8"] * 4
    assert Path("who.png").stat().st_size > 5_000
    told = json.loads(succeed(*words, "--json"))
    assert (told["by"], told["classes"], told["scenes"]) == ("box", list(CLASSES), [8] * 4)
    assert [sum(row) for row in told["table"]] != [8] * 4
    whole = succeed("data", "partition", "rooms", "--partition", "room-type", "--clients", "3").splitlines()
    assert whole[0] == "rooms has boxes: counted are these, by class"
    assert sum(int(line.split()[1]) for line in whole[2:5]) == 20


def test_the_table_agrees_with_the_shards_of_a_run_and_with_its_report(succeed: Call) -> None:
    """What `data partition` shows is what a run with the same settings deals out, and what its report counts."""
    from types import SimpleNamespace

    from fedstill.report.shards import partition_tables
    from fedstill.runtime.assemble import make_experiment
    from fedstill.runtime.plan import make_plan

    cut = {"name": "class-subset", "share": 0.3, "most": 8}
    experiment = make_experiment({"method": "fedavg", "data": "rooms", "clients": 3, "partition": cut})
    plan = make_plan(experiment)
    words = ("--partition", "class-subset:share=0.3,most=8", "--clients", "3", "--json")
    told = json.loads(succeed("data", "partition", "rooms", *words))
    assert told["scenes"] == plan.clients.shards.sizes().tolist()
    run = SimpleNamespace(experiment=experiment, config={"fingerprint": plan.fingerprint})
    table = partition_tables({"rooms": run})["rooms"]  # type: ignore[dict-item]
    assert (table.by, table.names, table.overlap) == ("box", CLASSES, True)
    assert (table.counts, table.sizes) == (told["table"], told["scenes"])


@pytest.mark.parametrize("suffix", ["png", "html"])
def test_scenes_are_drawn(succeed: Call, suffix: str) -> None:
    told = json.loads(succeed("data", "show", "rooms", "--count", "2", "--out", f"rooms.{suffix}", "--json"))
    assert told == {"data": "rooms", "classes": list(CLASSES), "picture": f"rooms.{suffix}"}
    assert Path(f"rooms.{suffix}").stat().st_size > 20_000
    assert succeed("data", "show", "rooms", "--class", "office", "--count", "1") == "drawn in rooms-office.png\n"


def test_scenes_of_ones_own_get_a_name_and_are_listed(succeed: Call, tmp_path: Path) -> None:
    (tmp_path / "flat").mkdir()
    for number in range(5):
        np.savez(
            tmp_path / "flat" / f"{number}.npz",
            points=np.random.default_rng(number).normal(size=(80, 3)),
            boxes=np.array([[0, 0, 0.5, 1, 1, 1, 0.0]]),
            labels=np.array([0]),
            classes=np.array(["chair"]),
        )
    said = succeed("data", "add", "flat", "flat", "--data-root", "root")
    assert (
        " ".join(said.split()) == "flat: 4 training and 1 test scenes with boxes of 1 classes; use it with --data flat"
    )
    entries = {entry["name"]: entry for entry in json.loads(succeed("data", "list", "--data-root", "root", "--json"))}
    assert entries["flat"]["found"]
    assert entries["rooms"]["where"] == "built in"
    assert not entries["scannet"]["found"]
    assert "no problems found" in succeed("data", "check", "flat", "--data-root", "root")
