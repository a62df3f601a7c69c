"""Files that nobody labelled: something to distil on, and no data set to train and test on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedstill.core.errors import InputError
from fedstill.data.catalogue import load
from fedstill.data.unlabelled import load_proxy

DRAW = np.random.default_rng(8)
PIXELS = DRAW.integers(0, 256, (12, 8, 8), dtype=np.uint8)


def archive(path: Path, **arrays: Any) -> str:
    np.savez(path, **arrays)
    return f"npz:{path}"


def test_an_archive_without_labels_has_no_classes(tmp_path: Path) -> None:
    bundle = load_proxy(archive(tmp_path / "pixels.npz", x=PIXELS))
    assert (bundle.kind, bundle.shape, bundle.classes) == ("image", (1, 8, 8), ())
    assert bundle.train.labels() is None
    assert len(bundle.train) == 12


def test_clouds_can_be_cut_to_their_first_points(tmp_path: Path) -> None:
    bundle = load_proxy(archive(tmp_path / "clouds.npz", x=DRAW.standard_normal((6, 20, 3)).astype(np.float32)))
    assert (bundle.kind, bundle.shape) == ("cloud", (20, 3))
    assert bundle.with_points(8).train.batch(torch.arange(6))["inputs"].shape == (6, 8, 3)


def test_a_table_without_labels_is_scaled_by_its_own_training_rows(tmp_path: Path) -> None:
    lines = ["age,sex,split", "40,f,train", "60,m,train", ",m,train", "99,f,test"]
    (tmp_path / "people.csv").write_text("\n".join(lines))
    bundle = load_proxy(f"table:{tmp_path / 'people.csv'}")
    assert (bundle.kind, bundle.shape, bundle.classes) == ("array", (3,), ())
    # The median of 40 and 60 fills the gap; the deviation of 40, 60, 50 is the root of 200 / 3.
    away = 10 / (200 / 3) ** 0.5
    expected = torch.tensor([[-away, 1, 0], [away, 0, 1], [0, 0, 1]])
    assert torch.allclose(bundle.train.batch(torch.arange(3))["inputs"], expected)
    (tmp_path / "empty.csv").write_text("age,sex")
    with pytest.raises(InputError, match="has no row"):
        load_proxy(f"table:{tmp_path / 'empty.csv'}")
    with pytest.raises(InputError, match="none is called label"):
        load(f"table:{tmp_path / 'people.csv'}")


def test_a_folder_of_signals_without_classes_is_read_by_name(tmp_path: Path) -> None:
    for name, length in (("b", 4), ("a", 4), ("c", 2)):
        np.save(tmp_path / f"{name}.npy", np.full((2, length), ord(name), dtype=np.float32))
    bundle = load_proxy(f"signals:{tmp_path}")
    assert (bundle.kind, bundle.shape, bundle.classes) == ("signal", (2, 4), ())
    assert bundle.train.batch(torch.arange(3))["inputs"][:, 0].tolist() == [[97] * 4, [98] * 4, [0, 99, 99, 0]]
    (tmp_path / "d.npy").write_bytes(b"damaged")
    with pytest.raises(InputError, match=r"d\.npy"):
        load_proxy(f"signals:{tmp_path}")


def test_labelled_data_comes_with_its_labels(tmp_path: Path) -> None:
    labels = np.arange(12) % 3
    name = archive(tmp_path / "labelled.npz", x=PIXELS, y=labels)
    assert load_proxy(name).fingerprint() == load(name).fingerprint()
    assert load_proxy("digits").fingerprint() == load("digits").fingerprint()


def test_an_archive_that_lost_some_of_its_arrays_is_not_taken_for_an_unlabelled_one(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="lacks 'y_train'"):
        load_proxy(archive(tmp_path / "torn.npz", x_train=PIXELS, x_test=PIXELS, y_test=np.arange(12) % 3))


def test_unlabelled_files_are_no_data_set_to_train_and_test_on(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="lacks 'y'"):
        load(archive(tmp_path / "pixels.npz", x=PIXELS))


def test_an_archive_that_holds_one_value_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"samples of the shape \(\) are neither images"):
        load_proxy(archive(tmp_path / "one.npz", x=np.array(3.0)))
    with pytest.raises(InputError, match="holds no samples"):
        load_proxy(archive(tmp_path / "none.npz", x=np.zeros((5, 0, 8))))
