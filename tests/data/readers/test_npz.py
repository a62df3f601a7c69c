from __future__ import annotations

import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedstill.core.errors import InputError
from fedstill.data.catalogue import check, load

GENERATOR = np.random.default_rng(0)


def images(count: int, *shape: int) -> np.ndarray:
    return GENERATOR.integers(0, 256, (count, *shape), dtype=np.uint8)


def usual(**changes: Any) -> dict[str, Any]:
    arrays = {
        "x_train": images(6, 5, 4, 3),
        "y_train": np.array([0, 1, 2] * 2),
        "x_test": images(3, 5, 4, 3),
        "y_test": np.arange(3),
        "classes": np.array(["a", "b", "c"]),
    }
    return {key: value for key, value in {**arrays, **changes}.items() if value is not None}


def saved(folder: Path, **arrays: Any) -> str:
    np.savez_compressed(folder / "toy.npz", **arrays)
    return f"npz:{folder / 'toy.npz'}"


def test_the_usual_keys(tmp_path: Path) -> None:
    arrays = usual(x_val=images(3, 5, 4, 3), y_val=np.arange(3))
    bundle = load(saved(tmp_path, **arrays))
    assert (bundle.kind, bundle.shape, bundle.classes) == ("image", (3, 5, 4), ("a", "b", "c"))
    assert bundle.validation is not None
    inputs = bundle.train.columns["inputs"]
    assert inputs.dtype == torch.uint8
    assert torch.equal(inputs, torch.from_numpy(arrays["x_train"]).permute(0, 3, 1, 2))
    assert bundle.train.labels().dtype == torch.int64


def test_medmnist_keys_and_names(tmp_path: Path) -> None:
    labels = np.arange(8, dtype=np.uint8)[:, None]
    splits = {f"{part}_{what}": images(8, 28, 28, 3) for part in ("train", "val", "test") for what in ("images",)}
    np.savez(tmp_path / "bloodmnist.npz", **splits, **{f"{part}_labels": labels for part in ("train", "val", "test")})
    bundle = load("bloodmnist", tmp_path)
    assert bundle.classes[0] == "basophil"
    assert len(bundle.splits()) == 3


def test_x_and_y_are_split_in_a_way_that_never_changes(tmp_path: Path) -> None:
    name = saved(tmp_path, x=images(50, 8, 8), y=np.arange(5).repeat(10))
    first, again = load(name), load(name)
    assert first.fingerprint() == again.fingerprint()
    assert first.shape == (1, 8, 8)
    assert first.classes == tuple("01234")
    assert torch.bincount(first.test.labels()).tolist() == [2] * 5
    assert "held out" in check(name).notes[0]


@pytest.mark.parametrize(
    ("pixels", "shape", "dtype"),
    [
        (images(6, 5, 4), (1, 5, 4), torch.uint8),
        (images(6, 3, 9, 9), (3, 9, 9), torch.uint8),
        (images(6, 5, 4, 1), (1, 5, 4), torch.uint8),
        (images(6, 5, 4).astype(np.int64), (1, 5, 4), torch.uint8),
        (images(6, 5, 4) > 99, (1, 5, 4), torch.uint8),
        (GENERATOR.normal(size=(6, 5, 4)), (1, 5, 4), torch.float32),
    ],
)
def test_layouts_and_types(tmp_path: Path, pixels: np.ndarray, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    bundle = load(saved(tmp_path, x_train=pixels, y_train=np.arange(6) % 2, x_test=pixels, y_test=np.arange(6) % 2))
    assert bundle.shape == shape
    assert bundle.kind == "image"
    assert bundle.train.columns["inputs"].dtype == dtype
    assert torch.equal(
        bundle.train.columns["inputs"].flatten(),
        torch.from_numpy(pixels).to(dtype).flatten() * (255 if pixels.dtype == bool else 1),
    )


def test_clouds_are_brought_to_one_size(tmp_path: Path) -> None:
    clouds = GENERATOR.normal(5, size=(8, 7, 3)).astype(np.float16)
    bundle = load(saved(tmp_path, x_train=clouds, y_train=np.arange(8) % 2, x_test=clouds, y_test=np.arange(8) % 2))
    assert (bundle.kind, bundle.shape) == ("cloud", (7, 3))
    centred = clouds.astype(np.float64) - clouds.astype(np.float64).mean(axis=1, keepdims=True)
    expected = centred / np.linalg.norm(centred, axis=2).max(axis=1)[:, None, None]
    assert np.allclose(bundle.train.columns["inputs"].numpy(), expected, atol=1e-6)


def test_coarse_classes_come_before_single_objects_and_gaps_are_left_out(tmp_path: Path) -> None:
    clouds = GENERATOR.normal(size=(12, 5, 3))
    kinds = np.array([0, 1] * 5 + [-1, -1])
    things = {"x": clouds, "y": np.arange(12), "y_category": kinds, "categories": np.array(["cup", "box"])}
    bundle = load(saved(tmp_path, **things))
    assert bundle.classes == ("cup", "box")
    assert (len(bundle.train), len(bundle.test)) == (8, 2)
    assert "2 of 12 samples have no label and are left out" in bundle.notes[0]
    words = load(saved(tmp_path, x=clouds, y_keyword=kinds, keyword_classes=np.array(["cup", "box"])))
    assert words.fingerprint() == bundle.fingerprint()


def test_clouds_without_points_or_size_are_named(tmp_path: Path) -> None:
    clouds, kinds = GENERATOR.normal(size=(8, 5, 3)), np.arange(8) % 2
    with pytest.raises(InputError, match=r"clouds hold no points \(x_train, y_train in .*toy.npz\)"):
        load(saved(tmp_path, x_train=clouds[:, :0], y_train=kinds, x_test=clouds, y_test=kinds))
    damaged = clouds.copy()
    damaged[3], damaged[5, 0, 0] = 7.0, np.inf
    report = check(saved(tmp_path, x_train=damaged, y_train=kinds, x_test=clouds + 9, y_test=kinds))
    archive = f"x_train, y_train in {tmp_path / 'toy.npz'}"
    assert f"1 train samples hold NaN or infinity, the first is row 5 of {archive}" in report.problems
    assert f"1 train clouds hold one place only, the first is row 3 of {archive}" in report.problems


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"y_train": np.arange(5) % 3}, "6 samples but 5 labels"),
        ({"y_train": np.array([0.0, 1.5, 2, 0, 1, 2])}, "labels are of type float64, expected are whole numbers"),
        ({"y_train": np.full((6, 14), 2)}, r"labels have the shape \(6, 14\)"),
        ({"y_train": np.array([0, 1, 2, 0, 1, -1])}, "1 train labels lie outside 0..2, the first is -1"),
        ({"y_test": np.array([0, 1, 3])}, "1 test labels lie outside 0..2, the first is 3"),
        ({"y_train": np.array([0, 1, 1, 0, 1, 0])}, "class 'c' has no training samples"),
        ({"x_train": np.array([{}] * 6)}, r"'x_train' in .*toy.npz is an array of Python objects"),
        ({"x_train": np.array(["a"] * 6)}, "samples are of type <U1"),
        ({"x_train": np.full((6, 5, 4, 3), 256)}, r"range over 256..256, not 0..255"),
        ({"x_train": images(6, 20)}, r"samples of the shape \(20,\) are neither images"),
        ({"x_train": images(6, 5, 4, 7)}, r"samples of the shape \(5, 4, 7\) are neither images"),
        ({"x_test": images(3, 6, 4, 3)}, r"differ in shape between splits: train images \(3, 5, 4\), test images"),
        ({"x_train": np.full((6, 5, 4, 3), np.nan)}, "6 train samples hold NaN or infinity"),
        ({"x_train": images(0, 5, 4, 3), "y_train": np.arange(0)}, "no samples"),
        ({"x_test": None}, r"toy.npz lacks 'x_test'; it holds classes, x_train"),
        ({"x_train": None, "y_train": None}, r"toy.npz holds classes, x_test, y_test; expected are x_train"),
        ({"x_train": np.array(5)}, r"there is one value where samples are expected \(x_train, y_train in"),
        ({"y_train": np.array(1)}, "there is one value where labels are expected"),
        ({"x_train": images(6, 0, 28)}, r"samples of the shape \(0, 28\) hold nothing"),
        ({"x_train": images(6, 5, 4, 3)[:, :0]}, r"samples of the shape \(0, 4, 3\) hold nothing"),
        (
            {"y_train": np.array([0, 1, 2, 0, 1, 2**40]), "classes": None},
            r"labels go up to 1,099,511,627,776: number the classes from 0 without gaps \(x_train",
        ),
        (
            {"y_train": np.array([0, 1, 2, 0, 1, 2**63], np.uint64)},
            "labels go up to 9223372036854775808, which is no class number",
        ),
        ({"classes": np.array(["a", "b", "b"])}, "several classes are called 'b'"),
    ],
)
def test_wrong_arrays_are_named(tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        load(saved(tmp_path, **usual(**changes)))


def test_wrong_arrays_without_a_split_are_named(tmp_path: Path) -> None:
    for arrays, sentence in (
        ({"x": images(4, 5, 5), "y": np.array([0, 0, 2**40, 2**40])}, "labels go up to 1,099,511,627,776"),
        ({"x": np.array(3), "y_category": np.array([0, -1])}, "there is one value where samples are expected"),
    ):
        name = saved(tmp_path, **arrays)
        with pytest.raises(InputError, match=sentence):
            load(name)
        assert not check(name).usable


def test_wrong_files_are_named(tmp_path: Path) -> None:
    name = saved(tmp_path, **usual())
    whole = (tmp_path / "toy.npz").read_bytes()
    middle = len(whole) // 3
    for data, sentence in (
        (b"", r"toy.npz is empty \(0 bytes\)"),
        (b"\x80\x04N.", r"toy.npz is no npz archive"),
        (whole[:-40], r"toy.npz is damaged"),
        (whole[:middle] + bytes(60) + whole[middle + 60 :], r"toy.npz is damaged"),
    ):
        (tmp_path / "toy.npz").write_bytes(data)
        with pytest.raises(InputError, match=sentence):
            load(name)


def test_a_header_that_claims_too_much_is_refused(tmp_path: Path) -> None:
    header = b"{'descr': '|u1', 'fortran_order': False, 'shape': (1000000000000000, 28, 28), }\n"
    with zipfile.ZipFile(tmp_path / "toy.npz", "w") as archive:
        for key in ("x", "y"):
            archive.writestr(f"{key}.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    with pytest.raises(InputError, match=r"'x' in .*toy.npz (claims|is damaged)"):
        load(f"npz:{tmp_path / 'toy.npz'}")


def test_archives_cut_anywhere_give_a_sentence(tmp_path: Path) -> None:
    name = saved(tmp_path, **usual())
    whole = (tmp_path / "toy.npz").read_bytes()
    for end in range(1, len(whole), 97):
        (tmp_path / "toy.npz").write_bytes(whole[:end])
        with pytest.raises(InputError, match=r"toy.npz"):
            load(name)
    for at in range(0, len(whole), 61):  # a flipped byte is caught, or harmless
        (tmp_path / "toy.npz").write_bytes(whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :])
        with suppress(InputError):
            load(name)


def test_one_sites_part_is_not_read_as_a_whole_data_set(tmp_path: Path) -> None:
    """Under a known name the usual reader would take it, and lose the ids of its rows."""
    saved(tmp_path, **usual(fedstill_shard=np.array("image")))
    with pytest.raises(
        InputError, match=r"toy.npz is one site's part of a data set: it can be used as npz:.*toy.npz only"
    ):
        load("mnist", tmp_path, tmp_path / "toy.npz")
