"""Clouds that stay in their files: the same points as in memory, no cap, bounded memory."""

from __future__ import annotations

import pickle
import shutil
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedstill.core.dataset import ArrayDataset, Subset
from fedstill.core.errors import DataChangedError, InputError
from fedstill.data.bundle import Bundle
from fedstill.data.catalogue import check, load
from fedstill.detection import cloud_files
from fedstill.detection.cloud_files import CloudFile, FileScenes
from fedstill.runtime.assemble import make_experiment
from fedstill.runtime.plan import make_plan

BOX = [0.0, 0.0, 0.0, 0.5, 0.5, 0.5, 0.0]


def write(folder: Path, sizes: list[int], split: str = "train", **more: Any) -> None:
    """Scenes with this many points and a box each."""
    (folder / split).mkdir(parents=True, exist_ok=True)
    for number, size in enumerate(sizes):
        cloud = np.random.default_rng([number, size]).normal(size=(size, 3))
        arrays = {"points": cloud, "boxes": [BOX], "labels": [number % 2], "classes": ["chair", "table"], **more}
        np.savez(folder / split / f"{split}-{number:04}", **arrays)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path, [300, 90, 250, 400])
    write(tmp_path, [200, 220], "test")
    return tmp_path


def opened(folder: Path, memory: int, monkeypatch: pytest.MonkeyPatch) -> Bundle:
    monkeypatch.setattr(cloud_files, "IN_MEMORY", memory)
    return load(f"folder:{folder}")


def test_batches_are_what_they_are_in_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held, lazy = (opened(folder, memory, monkeypatch) for memory in (2**20, 0))
    assert isinstance(held.train, ArrayDataset)
    assert isinstance(lazy.train, FileScenes)
    assert held.shape == lazy.shape == (400, 3)
    for count in (400, 100):
        one, two = held.with_points(count), lazy.with_points(count)
        assert isinstance(two.train, FileScenes)
        rows = torch.tensor([3, 0, 1])
        for name, column in one.train.batch(rows).items():
            assert torch.equal(column, two.train.batch(rows)[name]), name
    part = Bundle("part", Subset(lazy.train, rows), lazy.test, lazy.classes, "scene", lazy.shape).with_points(100)
    assert torch.equal(part.train.batch(torch.tensor([1]))["inputs"], one.train.batch(torch.tensor([0]))["inputs"])
    assert lazy.train.unlabelled().labels() is None
    assert "boxes" not in lazy.train.unlabelled().batch(torch.tensor([0]))
    assert lazy.train.batch(torch.zeros(0, dtype=torch.int64))["inputs"].shape == (0, 400, 3)
    assert lazy.fingerprint() == opened(folder, 0, monkeypatch).fingerprint() != lazy.with_points(100).fingerprint()


def test_few_points_of_large_scenes_are_kept_in_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four scenes of 100 points fit into 4,800 bytes, of 400 they do not: the cut is in memory, and is the same."""
    lazy = opened(folder, 4800, monkeypatch)
    assert isinstance(lazy.train, FileScenes)
    few = lazy.with_points(100)
    assert isinstance(few.train, ArrayDataset)
    assert few.fingerprint() == opened(folder, 2**20, monkeypatch).with_points(100).fingerprint()


def test_no_number_of_points_is_refused_because_of_a_cap(tmp_path: Path) -> None:
    for split in ("train", "test"):
        write(tmp_path, [50_000, 3_000], split)
    plan = make_plan(
        make_experiment(
            {"method": "fedavg", "data": f"folder:{tmp_path}", "model": "detr3d-lite", "clients": 2, "points": 50_000}
        )
    )
    inputs = plan.bundle.train.batch(torch.tensor([0, 1]))["inputs"]
    assert inputs.shape == (2, 50_000, 3)
    assert len(inputs[0].unique(dim=0)) == 50_000
    assert len(inputs[1].unique(dim=0)) == 3_000


def test_a_cloud_begins_with_any_smaller_one(tmp_path: Path) -> None:
    write(tmp_path, [300])
    path = tmp_path / "train" / "train-0000.npz"
    cloud, _ = cloud_files.read_points(path)
    for filled in (0, 350):
        file = CloudFile.of(path, "a", cloud, filled)
        whole = file.read(1000)
        for count in (64, 300, 350, 600):
            assert np.array_equal(file.read(count), whole[:count])
    assert len(np.unique(CloudFile.of(path, "a", cloud).read(300), axis=0)) == 300


def test_what_changed_or_is_gone_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lazy = opened(folder, 0, monkeypatch)
    write(folder, [301])
    with pytest.raises(DataChangedError, match=r"train-0000.npz was changed since its scenes were read: start again"):
        lazy.train.batch(torch.tensor([0]))
    (folder / "train" / "train-0001.npz").unlink()
    with pytest.raises(DataChangedError, match=r"train-0001.npz could be read before, and now cannot"):
        lazy.train.batch(torch.tensor([1]))


def test_memory_stays_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """150 scenes of 4,000 points are 7 MB as single-precision numbers; opening, checking and reading them takes 3."""
    for name, sizes in (("first", [100] * 3), ("", [4000] * 150)):
        write(tmp_path / name, sizes)
        write(tmp_path / name, sizes[:2], "test")
    assert check(f"folder:{tmp_path / 'first'}").usable  # its modules are loaded now, and not counted
    shutil.rmtree(tmp_path / "first")
    tracemalloc.start()
    try:
        bundle = opened(tmp_path, 2**20, monkeypatch)
        bundle.fingerprint()
        for rows in torch.arange(150).split(8):
            bundle.train.batch(rows)
        assert check(f"folder:{tmp_path}").usable
        assert tracemalloc.get_traced_memory()[1] < 4.5e6
    finally:
        tracemalloc.stop()
    assert len(pickle.dumps(bundle.train)) < 2e5  # what worker processes are sent


@pytest.mark.parametrize("memory", [2**20, 0], ids=["in memory", "in files"])
def test_check_reports_what_makes_results_mislead(memory: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    far = [[50.0, 0, 0, 1, 1, 1, 0], BOX]
    write(tmp_path, [100], boxes=far, labels=[0, 1])
    write(tmp_path, [100, 120], "test", boxes=[[0.0, 0, 0, 1, 1, 1, 90]])
    monkeypatch.setattr(cloud_files, "IN_MEMORY", memory)
    found = check(f"folder:{tmp_path}")
    assert found.usable
    assert [problem for problem in found.problems if "within" in problem] == [
        "1 of 2 train boxes have no point within 0.5 m, the first is box 0 of train-0000: boxes and points must have"
        " one origin, one unit and z up"
    ]
    assert "test boxes have headings up to 90, and headings must be in radians: multiply degrees by pi/180" in (
        found.problems
    )


def test_check_reports_units_numbers_of_boxes_and_empty_scenes(tmp_path: Path) -> None:
    millimetres = np.random.default_rng(0).normal(size=(100, 3)) * 1000
    write(tmp_path, [100], boxes=[[0.0, 0, 0, 500, 500, 500, 0]], points=millimetres)
    write(tmp_path, [100], "test", boxes=[BOX] * 70, labels=[0] * 70)
    write(tmp_path, [100, 101], "test", boxes=[BOX] * 70, labels=[0] * 70)
    np.savez(
        tmp_path / "test" / "z", points=np.eye(3).repeat(40, 0) / 5, boxes=[], labels=[], classes=["chair", "table"]
    )
    found = check(f"folder:{tmp_path}")
    assert any(
        problem.startswith("a train scene is ") and "scenes must be in metres: divide millimetres" in problem
        for problem in found.problems
    )
    assert (
        "a train box is 500 units long, and boxes must be in metres, like points: divide millimetres by 1,000"
    ) in found.problems
    assert any(
        problem.startswith("z (test) is 0.2 units across, and scenes must be in metres: give scenes scaled")
        for problem in found.problems
    )
    assert (
        "test-0000 (test) has 70 boxes, and detr3d-lite finds 24 at most: choose one that finds more (detr3d-turned"
        " 128, detr3d 256)" in found.problems
    )
    assert "1 of 3 test scenes have no boxes" in found.notes


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_run_without_any_box_is_refused(split: str, tmp_path: Path) -> None:
    for part in ("train", "test"):
        empty = {"boxes": [], "labels": np.zeros(0, np.int64)} if part == split else {}
        write(tmp_path, [100, 100], part, **empty)
    name = {"train": "training", "test": "test"}[split]
    with pytest.raises(InputError, match=f"no {name} scene of folder:.* has a box, so nothing can be .*: give scenes"):
        make_plan(make_experiment({"method": "fedavg", "data": f"folder:{tmp_path}", "clients": 2}))


def test_a_few_points_that_are_not_finite_are_left_out_with_a_note(tmp_path: Path) -> None:
    cloud = np.random.default_rng(0).normal(size=(100, 3))
    cloud[:5, 1] = np.nan
    write(tmp_path, [100], points=cloud)
    write(tmp_path, [100], "test")
    bundle = load(f"folder:{tmp_path}")
    assert bundle.notes == ("train-0000.npz: 5 of 100 points left out, which have coordinates that are not finite",)
    assert bundle.train.batch(torch.tensor([0]))["inputs"].isfinite().all()
    cloud[5, 0] = np.inf
    write(tmp_path, [100], points=cloud)
    with pytest.raises(InputError, match=r"train-0000.npz has points that are not finite numbers, 6 of 100: remove"):
        load(f"folder:{tmp_path}")
