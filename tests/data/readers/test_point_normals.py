"""Clouds with normals: read from each format, normalised and sampled with their points, trained on and predicted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import fedstill
from fedstill.core.dataset import ArrayDataset
from fedstill.core.errors import InputError
from fedstill.data.augmentation import PointAugmentation
from fedstill.data.lookup import load
from fedstill.data.readers.points import read_shape

DRAW = np.random.default_rng(0)


def sphere(points: int = 200) -> np.ndarray:
    """Points of a sphere away from the origin, with their normals."""
    normals = DRAW.normal(size=(points, 3))
    normals /= np.linalg.norm(normals, axis=1, keepdims=True)
    return np.concatenate([5 + 3 * normals, normals], axis=1)


def box(points: int = 200) -> np.ndarray:
    places = DRAW.uniform(-1, 1, (points, 3))
    sides = np.abs(places).argmax(axis=1)
    normals = np.zeros((points, 3))
    normals[np.arange(points), sides] = np.sign(places[np.arange(points), sides])
    places[np.arange(points), sides] = normals[np.arange(points), sides]
    return np.concatenate([places, normals], axis=1)


def write(path: Path, cloud: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".npy":
        np.save(path, cloud)
    elif path.suffix == ".xyz":
        np.savetxt(path, cloud)
    else:
        fields = "x y z normal_x normal_y normal_z curvature"
        header = f"FIELDS {fields}\nSIZE{' 4' * 7}\nTYPE{' F' * 7}\nPOINTS {len(cloud)}\nDATA binary\n"
        path.write_bytes(header.encode() + np.pad(cloud, ((0, 0), (0, 1))).astype("<f4").tobytes())


@pytest.mark.parametrize("suffix", [".npy", ".xyz", ".pcd"])
def test_each_format_gives_points_with_their_normals(tmp_path: Path, suffix: str) -> None:
    cloud = sphere()
    write(tmp_path / f"a{suffix}", cloud * [1, 1, 1, 4, 4, 4])  # whatever their length
    read = read_shape(tmp_path / f"a{suffix}", 50, "a", normals=True)
    assert read.shape == (50, 6)
    np.testing.assert_allclose(read[:, :3], 5 + 3 * read[:, 3:], atol=1e-5)
    assert read_shape(tmp_path / f"a{suffix}", 50, "a").shape == (50, 3)


def test_points_of_a_mesh_have_the_normals_of_their_faces(tmp_path: Path) -> None:
    (tmp_path / "a.off").write_text("OFF\n4 2 0\n0 0 1\n1 0 1\n1 1 1\n0 1 1\n3 0 1 2\n3 0 2 3\n")
    read = read_shape(tmp_path / "a.off", 9, "a", normals=True)
    assert (read[:, 3:] == [0, 0, 1]).all()
    assert (read[:, :3] == read_shape(tmp_path / "a.off", 9, "a")).all()


def test_normalising_sampling_and_augmentation_leave_normals_with_their_points(tmp_path: Path) -> None:
    for number in range(10):
        write(tmp_path / "d" / "ball" / f"{number}.npy", sphere())
        write(tmp_path / "d" / "box" / f"{number}.pcd", box())
    data = load(f"folder:{tmp_path / 'd'},normals=true")
    assert (data.kind, data.shape) == ("cloud", (200, 6))
    for bundle in (data, data.with_points(64), data.with_points(300)):
        assert isinstance(bundle.train, ArrayDataset)
        balls = bundle.train.columns["inputs"][bundle.train.columns["labels"] == 0]
        assert (balls[:, :, :3].norm(dim=2).amax(dim=1) - 1).abs().max() < 1e-5
        assert torch.nn.functional.cosine_similarity(balls[..., :3], balls[..., 3:], dim=2).mean() > 0.95
        moved = PointAugmentation(dropout=0)({"inputs": balls.clone()}, np.random.default_rng(0))["inputs"]
        assert torch.equal(moved[..., 3:], balls[..., 3:])
        assert not torch.equal(moved[..., :3], balls[..., :3])
    options = {"model": "pointnext-s:width=4", "clients": 2, "rounds": 1, "training": {"epochs": 1}}
    run = fedstill.run("fedavg", data=f"folder:{tmp_path / 'd'},normals=true", out=tmp_path / "runs", **options)
    files = [tmp_path / "d" / "ball" / "0.npy", tmp_path / "d" / "box" / "0.pcd"]
    assert all(len(one.inputs.T) == 6 for one in fedstill.predict(run, files))


def test_an_archive_of_clouds_with_normals(tmp_path: Path) -> None:
    clouds = np.stack([(sphere, box)[number % 2](64) for number in range(20)]).astype(np.float32)
    np.savez(tmp_path / "c.npz", x=clouds, y=np.arange(20) % 2)
    assert load(f"npz:{tmp_path / 'c.npz'},normals=true").shape == (64, 6)
    made = fedstill.dataset((clouds, np.arange(20) % 2), kind="cloud")
    assert (made.kind, made.shape) == ("cloud", (64, 6))


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("digits,normals=true", "normals"),
        ("folder:d,normals=true", r"0.npy has no normals that can be read: they are columns 4 to 6"),
        ("npz:c.npz,normals=true", r"normals=true is for clouds with six numbers per point, and .* holds clouds of"),
        ("table:t.csv,normals=true", r"normals=true is for clouds"),
    ],
)
def test_data_without_normals_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for number in range(4):
        write(Path("d", "ab"[number % 2], f"{number}.npy"), sphere()[:, :3])
    np.savez("c.npz", x=np.zeros((8, 20, 3), np.float32), y=np.arange(8) % 2)
    Path("t.csv").write_text("a,label\n" + "1,x\n2,y\n" * 5)
    with pytest.raises(InputError, match=sentence):
        load(name)
