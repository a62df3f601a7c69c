from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from fedstill.core.errors import InputError
from fedstill.data.catalogue import check, load
from fedstill.data.clouds import normalise


def write(path: Path, count: int = 6, seed: int = 0, classes: int = 3, **changes: Any) -> np.ndarray:
    path.parent.mkdir(parents=True, exist_ok=True)
    clouds = np.random.default_rng(seed).normal(size=(count, 20, 3)).astype(np.float32)
    arrays = {"data": clouds, "label": (np.arange(count) % classes).astype(np.uint8)[:, None], **changes}
    with h5py.File(path, "w") as file:
        for key, array in arrays.items():
            if array is not None:
                file[key] = array
    return clouds


def modelnet(root: Path) -> Path:
    home = root / "modelnet40_ply_hdf5_2048"
    for part, count in (("train", 2), ("test", 1)):
        names = [f"ply_data_{part}{number}.h5" for number in range(count)]
        for number, name in enumerate(names):
            write(home / name, seed=number + 10 * count, normal=np.zeros((6, 20, 3)))
        (home / f"{part}_files.txt").write_text("".join(f"data/modelnet40_ply_hdf5_2048/{name}\n" for name in names))
    (home / "shape_names.txt").write_text("airplane\nbathtub\nbed\n")
    return home


def test_modelnets_files_are_joined(tmp_path: Path) -> None:
    home = modelnet(tmp_path)
    bundle = load("modelnet40", tmp_path)
    assert (bundle.classes, bundle.shape) == (("airplane", "bathtub", "bed"), (20, 3))
    assert (len(bundle.train), len(bundle.test)) == (12, 6)
    assert bundle.train.labels().tolist() == [0, 1, 2] * 4
    with h5py.File(home / "ply_data_train1.h5") as file:
        assert torch.equal(bundle.train.columns["inputs"][6:], torch.from_numpy(normalise(file["data"][:])))
    assert check("modelnet40", root=tmp_path).ok
    for listing in ("train_files.txt", "test_files.txt"):
        (home / listing).unlink()
    assert load("modelnet40", tmp_path).fingerprint() == bundle.fingerprint()  # by their names, without lists


def test_scanobjectnn_and_its_variants(tmp_path: Path) -> None:
    home = tmp_path / "scanobjectnn" / "h5_files"
    for number, place in enumerate(("main_split", "main_split_nobg")):
        for variant in ("", "_augmentedrot_scale75"):
            for part in ("training", "test"):
                seed = 10 * number + len(variant) + len(part)
                write(home / place / f"{part}_objectdataset{variant}.h5", 30, seed, 15, mask=np.zeros((30, 20)))
    bundle = load("scanobjectnn", tmp_path)
    assert (len(bundle.classes), bundle.classes[4], len(bundle.train)) == (15, "chair", 30)
    assert "also holds training_objectdataset_augmentedrot_scale75.h5" in bundle.notes[0]
    hard = home / "main_split" / "training_objectdataset_augmentedrot_scale75.h5"
    other = load("scanobjectnn", path=hard)
    assert other.fingerprint() != bundle.fingerprint()
    with h5py.File(hard) as file:
        assert torch.equal(other.train.columns["inputs"], torch.from_numpy(normalise(file["data"][:])))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"data": None, "points": np.zeros(3)}, r"ply_data_train1.h5 holds label, points; expected are data and label"),
        ({"label": None}, r"ply_data_train1.h5 holds data; expected are data and label"),
        ({"data": np.zeros((6, 20))}, r"data in .*ply_data_train1.h5 has the shape \(6, 20\)"),
        ({"label": np.zeros(5, dtype=int)}, r"ply_data_train1.h5 holds 6 clouds but 5 labels"),
        (
            {"data": np.zeros((6, 9, 3))},
            r"ply_data_train0.h5, ply_data_train1.h5 in .* hold clouds of different shapes",
        ),
        (
            {"data": np.full((6, 20, 3), np.nan)},
            r"6 train samples hold NaN or infinity, the first is row 6 of ply_data_train0.h5",
        ),
    ],
)
def test_wrong_arrays_are_named(tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    write(modelnet(tmp_path) / "ply_data_train1.h5", **changes)
    with pytest.raises(InputError, match=sentence):
        load("modelnet40", tmp_path)


def test_a_file_that_claims_to_be_huge_is_refused(tmp_path: Path) -> None:
    with h5py.File(modelnet(tmp_path) / "ply_data_train1.h5", "w") as file:
        file.create_dataset("data", shape=(2**44, 20, 3), dtype="f8", chunks=(1, 20, 3))  # nothing of it is written
        file["label"] = np.zeros(6, dtype=int)
    with pytest.raises(InputError, match=r"ply_data_train1.h5 claims to be larger than memory"):
        load("modelnet40", tmp_path)


def test_all_wrong_files_are_listed(tmp_path: Path) -> None:
    home = modelnet(tmp_path)
    (home / "ply_data_train0.h5").write_bytes(b"")
    (home / "ply_data_train1.h5").write_bytes(b"no such thing")
    (home / "ply_data_test0.h5").unlink()
    problems = check("modelnet40", root=tmp_path).problems
    assert any("test_files.txt names ply_data_test0.h5, which does not exist" in problem for problem in problems)
    assert any("ply_data_train0.h5 is empty (0 bytes)" in problem for problem in problems)
    assert any("ply_data_train1.h5 is no HDF5 file, or is damaged" in problem for problem in problems)
