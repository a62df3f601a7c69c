"""Scenes with colour and height: the same in memory and from files, on every path, and refused where there are none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedstill
from fedstill.core.dataset import ArrayDataset, Subset
from fedstill.core.errors import DataChangedError, InputError
from fedstill.data.bundle import Bundle
from fedstill.data.lookup import load
from fedstill.detection import cloud_files
from fedstill.detection.cloud_files import FileScenes
from fedstill.detection.point_features import heights
from fedstill.detection.scene_features import WithHeight
from fedstill.detection.scene_sets import scene_bundle
from fedstill.detection.scenes import Scenes
from fedstill.runtime.assemble import make_experiment
from fedstill.runtime.defaults import resolve
from fedstill.runtime.plan import make_plan

Call = Callable[..., tuple[int, str, str]]
BOX = [0.0, 0.0, 0.0, 0.5, 0.5, 0.5, 0.0]
BOTH = ("colour", "height")


def scene(number: int, size: int) -> np.ndarray:
    """A cloud whose colours are a function of its coordinates, so that a mix-up of rows cannot go unnoticed."""
    cloud = np.random.default_rng([number, size]).uniform(-1, 1, size=(size, 3)).astype(np.float32)
    return np.column_stack([cloud, (cloud + 1) / 2])


def write(folder: Path, columns: int = 6, sizes: tuple[int, ...] = (300, 90, 250, 400)) -> Path:
    for split, chosen in (("train", sizes), ("test", (200, 220))):
        (folder / split).mkdir(parents=True, exist_ok=True)
        for number, size in enumerate(chosen):
            arrays = {"boxes": [BOX], "labels": [number % 2], "classes": ["chair", "table"]}
            np.savez(folder / split / f"{split}-{number}", points=scene(number, size)[:, :columns], **arrays)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "scenes")


def settings(folder: Path, features: Any = "colour,height", **more: Any) -> dict[str, Any]:
    given = {"method": "fedavg", "data": f"folder:{folder}", "model": "small-detr3d-lite", "clients": 2, "rounds": 1}
    return given | {"training": {"epochs": 1, "batch": 2}, "points": 128, "detection": {"features": features}} | more


def inputs(bundle: Bundle) -> torch.Tensor:
    return bundle.train.batch(torch.arange(len(bundle.train)))["inputs"]


@pytest.mark.parametrize("features", [("height",), ("colour",), BOTH], ids="-".join)
def test_features_are_those_of_the_same_points_in_memory_and_from_files(
    features: tuple[str, ...], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for memory in (2**20, 0):
        monkeypatch.setattr(cloud_files, "IN_MEMORY", memory)
        bare = load(f"folder:{folder}").with_points(100)
        made = bare.with_features(features)
        assert isinstance(made.train, FileScenes if memory == 0 else ArrayDataset)
        assert torch.equal(inputs(made)[..., :3], inputs(bare))
        assert made.train.batch(torch.tensor([1]))["labels"].tolist() == [[1]]
        found.append(made)
    held, lazy = found
    assert held.shape == lazy.shape == (100, 3 + 3 * ("colour" in features) + ("height" in features))
    assert torch.equal(inputs(held), inputs(lazy))
    assert lazy.fingerprint() == load(f"folder:{folder}").with_points(100).with_features(features).fingerprint()
    assert lazy.fingerprint() != bare.fingerprint()
    if "colour" in features:
        torch.testing.assert_close(inputs(held)[..., 3:6], inputs(held)[..., :3] / 2)
    if "height" in features:
        assert np.array_equal(inputs(held)[..., -1:].numpy(), heights(inputs(bare).numpy()))


def test_slices_and_parts_keep_their_own_colours(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = inputs(load(f"folder:{folder}").with_features(BOTH))
    for memory in (2**20, 0):
        monkeypatch.setattr(cloud_files, "IN_MEMORY", memory)
        half = load(f"folder:{folder}[50%:]")
        assert len(half.train) == 2
        assert torch.equal(inputs(half.with_features(BOTH)), whole[[2, 3]])
        assert torch.equal(inputs(half.with_features(("height",))), whole[[2, 3]][..., [0, 1, 2, 6]])


def test_data_of_another_kind_gets_heights_batch_by_batch(rooms: Any) -> None:
    class Other:
        def __init__(self, data: ArrayDataset) -> None:
            self.data = data

        def __getattr__(self, name: str) -> Any:
            return getattr(self.data, name) if name != "columns" else self.__getattribute__(name)

        def __len__(self) -> int:
            return len(self.data)

    data = ArrayDataset(inputs=rooms.points, labels=rooms.classes, boxes=rooms.boxes)
    bundle = Bundle("own", Other(data), Subset(data, torch.arange(2)), ("a",) * 10, "scene", rooms.points.shape[1:])
    made = bundle.with_features(("height",))
    assert isinstance(made.train, WithHeight)
    assert np.array_equal(inputs(made)[..., 3:].numpy(), heights(rooms.points.numpy()))
    assert made.train.unlabelled().labels() is None
    assert torch.equal(made.train.labels(), rooms.classes)


def test_without_features_nothing_changes(folder: Path) -> None:
    plain = make_experiment({key: value for key, value in settings(folder).items() if key != "detection"})
    unset = make_experiment(settings(folder, ()))
    assert make_plan(plain).fingerprint == make_plan(unset).fingerprint
    assert unset.hashed()["detection"] == {"protocol": "published"}
    assert make_experiment(settings(folder, "height")).hashed()["detection"]["features"] == ["height"]


def test_a_file_that_lost_its_colours_or_changed_is_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cloud_files, "IN_MEMORY", 0)
    bare = load(f"folder:{folder}")
    made = bare.with_features(("colour",))
    place = folder / "train" / "train-0.npz"
    held = dict(np.load(place))
    np.savez(place, **{**held, "points": np.column_stack([held["points"][:, :3], held["points"][:, 3:] * 0.5])})
    with pytest.raises(DataChangedError, match=r"train-0.npz was changed since its scenes were read"):
        made.train.batch(torch.tensor([0]))
    np.savez(place, **{**held, "points": held["points"] * 0.5})
    with pytest.raises(DataChangedError, match=r"train-0.npz was changed since its scenes were read"):
        bare.with_features(("colour",))


def test_data_with_other_features_than_asked_for_is_refused(folder: Path) -> None:
    made = load(f"folder:{folder}").with_points(100).with_features(BOTH)
    assert made.with_features(BOTH) is made
    with pytest.raises(
        InputError, match=r"have colour and height beside their coordinates: set detection.features=col"
    ):
        resolve(make_experiment(settings(folder, "height", points=100)), made)


BAD: dict[str, tuple[str, str]] = {
    "no colour in the files": ("colour", "train-0.npz has no colours of points: export it with colours, or leave"),
    "both of them": ("height,colour", "train-0.npz has no colours of points"),
    "unknown": ("color", "detection.features.0: unknown choice 'color': did you mean 'colour'? Known: colour, height"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_features_are_refused_before_any_work(case: str, tmp_path: Path, call: Call) -> None:
    features, sentence = BAD[case]
    folder = write(tmp_path / "scenes", columns=3)
    code, out, err = call(
        *("run", "fedavg", "--data", f"folder:{folder}", "--model", "small-detr3d-lite", "--clients", "2"),
        *("--rounds", "1", "--set", f"detection.features={features}", "--out", str(tmp_path / "runs")),
    )
    assert code == 2
    assert sentence in err
    assert len(err.strip().splitlines()) == 1
    assert not out
    assert not (tmp_path / "runs").exists()


def test_built_in_rooms_and_classifiers_have_no_colours(rooms: Scenes) -> None:
    bundle = scene_bundle("rooms", {"train": rooms, "test": rooms})
    with pytest.raises(InputError, match="rooms has no colours of points: choose scenes from files with colours"):
        bundle.with_features(("colour",))
    assert bundle.with_features(("height",)).shape == (bundle.shape[0], 4)
    with pytest.raises(InputError, match="detection"):
        make_plan(make_experiment({"method": "fedavg", "data": "digits", "detection": {"features": "height"}}))


def test_a_coloured_run_goes_all_the_way(folder: Path, tmp_path: Path, call: Call) -> None:
    """Engines agree, and detect reads the colours of scans and refuses one without."""
    runs = [
        fedstill.run(settings(folder), out=tmp_path / engine, engine=engine, workers=2)
        for engine in ("in-process", "wire")
    ]
    assert runs[0].sha256 == runs[1].sha256
    assert runs[0].task.shape == (128, 7)
    scan = tmp_path / "scan.npy"
    np.save(scan, scene(9, 200))
    (found,) = fedstill.detect(runs[0], scan)
    assert found.points.shape == (128, 7)
    torch.testing.assert_close(found.points[:, 3:6], found.points[:, :3] / 2)
    grey = np.column_stack([scene(9, 200)[:, :3], np.full((200, 3), 0.5)])
    np.save(tmp_path / "grey.npy", grey)
    (other,) = fedstill.detect(runs[0], tmp_path / "grey.npy")
    assert torch.equal(found.points[:, [0, 1, 2, 6]], other.points[:, [0, 1, 2, 6]])
    assert not torch.equal(found.found.scores, other.found.scores)
    np.save(tmp_path / "bare.npy", grey[:, :3])
    code, _, err = call("detect", str(runs[0].path), str(tmp_path / "bare.npy"), "--out", str(tmp_path / "boxes.json"))
    assert (code, "bare.npy has no colours of points" in err) == (2, True)
    boxes, page, run = tmp_path / "boxes.json", tmp_path / "view.html", str(runs[0].path)
    assert call("detect", run, str(scan), "--out", str(boxes), "--html", str(page), "--least", "0")[0] == 0
    assert json.loads(boxes.read_text())["scenes"][0]["boxes"]
    assert "scan.npy" in page.read_text(encoding="utf-8")
