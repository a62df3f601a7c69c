"""ScanNet and SUN RGB-D from tiny files in VoteNet's layouts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedstill.core.errors import InputError
from fedstill.detection.scenes import Scenes, inside
from fedstill.detection.votenet import SCANNET, SUNRGBD, read_scannet, read_sunrgbd

CHAIR = [1.0, 2.0, 0.5, 0.4, 0.6, 1.0]  # centre and sizes


def cloud(points: int = 100, columns: int = 6, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=(points, columns)).astype(np.float32)


def scannet(folder: Path, name: str = "scene0000_00", points: Any = None, boxes: Any = None) -> Path:
    np.save(folder / f"{name}_vert.npy", cloud() if points is None else points)
    np.save(folder / f"{name}_bbox.npy", np.array([[*CHAIR, 5]]) if boxes is None else boxes)
    return folder


def sunrgbd(folder: Path, name: str = "000001", points: Any = None, boxes: Any = None) -> Path:
    np.savez_compressed(folder / f"{name}_pc.npz", pc=cloud() if points is None else points)
    np.save(folder / f"{name}_bbox.npy", np.array([[*CHAIR, 0.3, 3]]) if boxes is None else boxes)
    return folder


def rows(scenes: Scenes, row: int) -> list[list[float]]:
    found: list[list[float]] = scenes.boxes_of(row)[0].tolist()
    return found


def test_the_classes() -> None:
    assert len(SCANNET) == 18
    assert len(SUNRGBD) == 10
    assert list(SCANNET) == sorted(SCANNET)
    assert (SCANNET[3], SCANNET[14], SCANNET[39]) == ("cabinet", "desk", "garbage bin")
    assert (SUNRGBD[0], SUNRGBD[3], SUNRGBD[9]) == ("bed", "chair", "bathtub")


def test_scannet_has_full_sizes_and_no_headings(tmp_path: Path) -> None:
    """nyu40 ids 5, 39 and 3 are the third, the last and the first of the 18 classes; 1 and 2 (wall, floor) are none."""
    boxes = np.array([[*CHAIR, number] for number in (5, 39, 1, 3, 2)])
    scannet(tmp_path, "scene0001_00")
    scannet(tmp_path, "scene0000_01", boxes=boxes)
    scenes = read_scannet(tmp_path, points=80)
    assert scenes.names == ("scene0000_01", "scene0001_00")
    assert scenes.classes.tolist() == [[2, 17, 0], [2, -1, -1]]
    assert rows(scenes, 1)[0] == pytest.approx([*CHAIR, 0.0])
    assert scenes.points.shape == (2, 80, 3)
    assert scenes.points.dtype == scenes.boxes.dtype == torch.float32
    assert scenes.kinds.tolist() == [-1, -1]
    assert scenes.class_names[2] == "chair"
    assert scenes.notes == ("scene0000_01_bbox.npy: 2 boxes of other classes left out",)


def test_sunrgbd_has_half_sizes_and_turns_clockwise(tmp_path: Path) -> None:
    scenes = read_sunrgbd(sunrgbd(tmp_path), points=80)
    assert rows(scenes, 0)[0] == pytest.approx([1.0, 2.0, 0.5, 0.8, 1.2, 2.0, -0.3])
    assert scenes.classes.tolist() == [[3]]
    assert scenes.class_names[3] == "chair"


def test_points_of_a_turned_thing_are_in_its_box(tmp_path: Path) -> None:
    """A plank along the line from (-1, 1) to (1, -1): its file says +45 degrees from +x towards -y."""
    along = np.linspace(-1, 1, 100)
    plank = np.column_stack([along, -along, np.zeros(100)])
    boxes = np.array([[0, 0, 0, 1.5, 0.05, 0.05, np.pi / 4, 1]])
    scenes = read_sunrgbd(sunrgbd(tmp_path, points=plank, boxes=boxes), points=100)
    assert inside(scenes.points[0].double().numpy(), scenes.boxes[0].double().numpy()).all()


@pytest.mark.parametrize("heading", [-4.0, -np.pi, 0.0, 3.0, 6.0])
def test_headings_are_brought_into_one_turn(tmp_path: Path, heading: float) -> None:
    found = rows(read_sunrgbd(sunrgbd(tmp_path, boxes=np.array([[*CHAIR, heading, 3]])), points=80), 0)[0][6]
    assert abs(found) <= np.pi + 1e-6
    assert np.cos(found) == pytest.approx(np.cos(-heading), abs=1e-6)
    assert np.sin(found) == pytest.approx(np.sin(-heading), abs=1e-6)


def test_a_scene_without_boxes_is_a_scene(tmp_path: Path) -> None:
    for number, empty in enumerate((np.zeros((0, 8)), np.zeros(0))):
        sunrgbd(tmp_path, f"{number:06d}", boxes=empty)
    scenes = read_sunrgbd(tmp_path, points=80)
    assert scenes.classes.tolist() == [[-1], [-1]]


def test_points_are_drawn_by_name_without_repeats_where_there_are_enough(tmp_path: Path) -> None:
    points = cloud(200)
    for name in ("scene0000_00", "scene0001_00"):
        scannet(tmp_path, name, points)
    both = read_scannet(tmp_path, points=150)
    alone = read_scannet(tmp_path, points=150, names=["scene0001_00"])
    assert torch.equal(alone.points[0], both.points[1])
    assert not torch.equal(both.points[0], both.points[1])
    assert len(both.points[0].unique(dim=0)) == 150
    assert not torch.equal(read_scannet(tmp_path, points=150, seed=1).points, both.points)
    more = read_scannet(tmp_path, points=500).points[0]
    assert len(more) == 500
    assert torch.equal(more.unique(dim=0), torch.from_numpy(points[:, :3]).unique(dim=0))


def test_boxes_without_extent_are_left_out_and_said(tmp_path: Path) -> None:
    flat = np.array([[*CHAIR, 5], [0, 0, 0, 1, 0, 1, 5]])
    scenes = read_scannet(scannet(tmp_path, boxes=flat), points=80)
    assert scenes.classes.tolist() == [[2]]
    assert scenes.notes == ("scene0000_00_bbox.npy: 1 box without extent left out",)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"boxes": np.array([[0, 0, 0, 1, -1, 1, 5.0]])}, r"scene0000_00_bbox.npy: box 0 has sizes 1, -1, 1"),
        ({"boxes": np.array([[*CHAIR, 41]])}, r"scene0000_00_bbox.npy has a box of class 41: nyu40 ids are 0 to 40"),
        ({"boxes": np.array([[*CHAIR, 3.5]])}, r"_bbox.npy has a box of class 3.5: classes are whole numbers"),
        ({"boxes": np.array([[*CHAIR, np.nan]])}, r"_bbox.npy: box 0 has numbers that are not finite"),
        ({"boxes": np.zeros((2, 8))}, r"_bbox.npy: boxes must be 7 numbers each, not \(2, 8\)"),
        ({"boxes": np.array(["chair"])}, r"_bbox.npy does not hold numbers"),
        ({"points": cloud(63)}, r"scene0000_00_vert.npy has 63 points: a scene needs at least 64"),
        ({"points": cloud(100, 2)}, r"_vert.npy: a cloud must be \(points, 3 or more\), not \(100, 2\)"),
        ({"points": np.full((100, 3), np.nan)}, r"_vert.npy has points that are not finite"),
        ({"points": np.array([None] * 100)}, r"_vert.npy is an array of Python objects, which are never loaded"),
    ],
    ids=range(10),
)
def test_bad_scannet_files_are_named(tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        read_scannet(scannet(tmp_path, **changes), points=80)


def test_bad_sunrgbd_files_are_named(tmp_path: Path) -> None:
    sunrgbd(tmp_path, boxes=np.array([[*CHAIR, 0.0, 10]]))
    with pytest.raises(InputError, match=r"000001_bbox.npy: box 0 is of class 10, and classes are 0 to 9"):
        read_sunrgbd(tmp_path)
    np.savez(tmp_path / "000001_pc.npz", points=cloud())
    with pytest.raises(InputError, match=r"000001_pc.npz lacks 'pc'; it holds points"):
        read_sunrgbd(sunrgbd_boxes(tmp_path))
    (tmp_path / "000001_pc.npz").write_bytes(b"PK\x03\x04 cut off")
    with pytest.raises(InputError, match=r"000001_pc.npz is damaged"):
        read_sunrgbd(tmp_path)
    (tmp_path / "000001_pc.npz").write_bytes(b"")
    with pytest.raises(InputError, match=r"000001_pc.npz is empty"):
        read_sunrgbd(tmp_path)


def test_a_compressed_picture_damaged_anywhere_gives_a_sentence(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "000001_pc.npz", pc=cloud())
    whole = (tmp_path / "000001_pc.npz").read_bytes()
    sunrgbd_boxes(tmp_path)
    for at in range(100, len(whole) - 200, 37):
        damaged = bytearray(whole)
        damaged[at] ^= 0xFF
        (tmp_path / "000001_pc.npz").write_bytes(bytes(damaged))
        with pytest.raises(InputError, match=r"000001_pc.npz"):
            read_sunrgbd(tmp_path)


def sunrgbd_boxes(folder: Path) -> Path:
    np.save(folder / "000001_bbox.npy", np.array([[*CHAIR, 0.3, 3]]))
    return folder


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a folder"):
        read_scannet(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"holds no files \*_vert.npy"):
        read_scannet(tmp_path)
    scannet(tmp_path)
    with pytest.raises(InputError, match=r"holds no scene0009_00_vert.npy"):
        read_scannet(tmp_path, names=["scene0000_00", "scene0009_00"])
    with pytest.raises(InputError, match="at least 64 points, not 8"):
        read_scannet(tmp_path, points=8)
    (tmp_path / "scene0000_00_bbox.npy").unlink()
    with pytest.raises(InputError, match=r"scene0000_00_bbox.npy does not exist"):
        read_scannet(tmp_path)
