"""Scans with boxes beside them: the same scenes as in archives, what detect wrote can be learned from, bad files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import trimesh

from fedstill.data.catalogue import check, load

Call = Callable[..., tuple[int, str, str]]
CRATE = {"class": "crate", "centre": [0.5, 0.5, 0.5], "size": [1.0, 1.0, 1.0]}
SHELF = {"class": "shelf", "centre": [1, 2, 3], "size": [0.5, 1, 2], "heading": 0.25}


def cloud(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0, 2, (80, 3)).astype(np.float32)


def write_pcd(path: Path, points: np.ndarray) -> None:
    head = f"FIELDS x y z\nSIZE 4 4 4\nTYPE F F F\nWIDTH {len(points)}\nHEIGHT 1\nDATA binary\n"
    path.write_bytes(head.encode() + points.astype("<f4").tobytes())


def write_scans(folder: Path, boxes: Any = None) -> Path:
    for number, split in enumerate(("train", "test")):
        place = folder / split
        place.mkdir(parents=True, exist_ok=True)
        write_pcd(place / "a.pcd", cloud(number))
        trimesh.PointCloud(cloud(number + 10)).export(place / "b.ply")
        for name in ("a", "b"):
            content = {"classes": ["crate", "shelf"], "boxes": [CRATE, SHELF] if boxes is None else boxes}
            (place / f"{name}.json").write_text(json.dumps(content))
    return folder


def test_a_folder_of_scans_is_a_data_set(tmp_path: Path) -> None:
    bundle = load(f"folder:{write_scans(tmp_path)}")
    assert (bundle.kind, bundle.classes, bundle.shape) == ("scene", ("crate", "shelf"), (80, 3))
    batch = bundle.train.batch(torch.arange(2))
    assert batch["boxes"][0].tolist() == [[0.5, 0.5, 0.5, 1, 1, 1, 0], [1, 2, 3, 0.5, 1, 2, 0.25]]
    assert batch["labels"][1].tolist() == [0, 1]
    assert np.array_equal(np.sort(batch["inputs"][0].numpy(), axis=0), np.sort(cloud(0), axis=0))
    report = check(f"folder:{tmp_path}")
    assert report.ok
    assert report.counts == {"train": (2, 2), "test": (2, 2)}


def test_what_detect_wrote_can_be_learned_from(tmp_path: Path) -> None:
    write_scans(tmp_path)
    written = {"run": "x", "scenes": [{"file": "a.pcd", "points": 80, "boxes": [SHELF | {"score": 0.9}]}]}
    (tmp_path / "train" / "a.json").write_text(json.dumps(written))
    bundle = load(f"folder:{tmp_path}")
    batch = bundle.train.batch(torch.arange(2))
    assert [bundle.classes[row] for row in batch["labels"][0].tolist() if row >= 0] == ["shelf"]


def test_shapes_with_notes_beside_them_are_no_scenes(tmp_path: Path) -> None:
    for name in ("chair", "table"):
        (tmp_path / name).mkdir()
        for number in range(5):
            np.savetxt(tmp_path / name / f"{number}.xyz", cloud(number))
            (tmp_path / name / f"{number}.json").write_text('{"maker": "nobody"}')
    assert load(f"folder:{tmp_path}").kind == "cloud"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("{", "a.json is no JSON file"),
        ("", "a.json is empty"),
        ("[]", "a.json should hold an object with a list 'boxes'"),
        ({"boxes": [1]}, "a.json should hold an object with a list 'boxes'"),
        ({"scenes": [{}, {}]}, "a.json has 2 scenes"),
        ({"boxes": [{"centre": [0, 0, 0]}]}, "a.json: box 0 has no class"),
        ({"boxes": [CRATE | {"centre": [0, 0]}]}, "a.json: box 0: centre must be 3 numbers, not [0, 0]"),
        ({"boxes": [CRATE | {"size": [1, "1", 1]}]}, "a.json: box 0 has something that is no number"),
        ({"boxes": [CRATE | {"size": [1, 0, 1]}]}, "box 0 has sizes 1, 0, 1: all three must be above 0"),
        ({"boxes": [CRATE | {"centre": [float("nan"), 0, 0]}]}, "box 0 has numbers that are not finite"),
        ({"boxes": [CRATE], "classes": ["shelf"]}, "has a box of class 'crate', which is not among its classes"),
        ({"boxes": [CRATE], "classes": "crate"}, "classes must be a list of names"),
    ],
)
def test_bad_boxes_get_a_sentence(call: Call, content: Any, sentence: str, tmp_path: Path) -> None:
    write_scans(tmp_path / "scans")
    (tmp_path / "scans" / "train" / "a.json").write_text(content if isinstance(content, str) else json.dumps(content))
    code, _, err = call("run", "fedavg", "--data", f"folder:{tmp_path / 'scans'}", "--rounds", "1", "--clients", "1")
    assert code == 2
    assert sentence in " ".join(err.split())


def test_a_damaged_scan_is_reported_by_the_check(call: Call, tmp_path: Path) -> None:
    write_scans(tmp_path / "scans")
    path = tmp_path / "scans" / "train" / "a.pcd"
    path.write_bytes(path.read_bytes()[:-40])
    code, out, _ = call("data", "check", f"folder:{tmp_path / 'scans'}")
    assert code == 2
    assert "of 80 points" in " ".join(out.split())
