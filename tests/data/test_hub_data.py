"""Hugging Face data sets by name, from local files: nothing is downloaded."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import fedstill
from fedstill.core.errors import InputError
from fedstill.data.lookup import load

hf: Any = pytest.importorskip("datasets")


def rows(count: int, seed: int) -> dict[str, list[Any]]:
    draw = np.random.default_rng(seed)
    return {"x": draw.normal(size=(count, 4)).astype(np.float32).tolist(), "label": [row % 2 for row in range(count)]}


def test_a_saved_data_set_and_its_splits(tmp_path: Path) -> None:
    saved = hf.DatasetDict(train=hf.Dataset.from_dict(rows(20, 0)), test=hf.Dataset.from_dict(rows(6, 1)))
    saved.save_to_disk(tmp_path / "saved")
    bundle = load(f"hf:{tmp_path / 'saved'}")
    assert (len(bundle.train), len(bundle.test), bundle.shape) == (20, 6, (4,))
    made = fedstill.run(
        "fedavg", data=f"hf:{tmp_path / 'saved'}", model="mlp:width=4", clients=2, rounds=1, out=tmp_path / "runs"
    )
    assert made.experiment.data == f"hf:{tmp_path / 'saved'}"
    again = fedstill.run(
        "fedavg", data=f"hf:{tmp_path / 'saved'}", model="mlp:width=4", clients=2, rounds=1, out=tmp_path / "runs"
    )
    assert again.reused


def test_without_a_test_split_some_is_held_out(tmp_path: Path) -> None:
    hf.Dataset.from_dict(rows(20, 0)).save_to_disk(tmp_path / "whole")
    bundle = load(f"hf:{tmp_path / 'whole'}")
    assert (len(bundle.train), len(bundle.test)) == (16, 4)


def test_a_folder_of_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hf.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    for part, count in (("train", 3), ("test", 2)):
        for kind in "ab":
            folder = tmp_path / "images" / part / kind
            folder.mkdir(parents=True)
            for number in range(count):
                Image.new("RGB", (8, 8), (40 * number, 0, 100 if kind == "a" else 0)).save(folder / f"{number}.png")
    bundle = load(f"hf:{tmp_path / 'images'}")
    assert (bundle.classes, bundle.shape, len(bundle.train), len(bundle.test)) == (("a", "b"), (3, 8, 8), 6, 4)


def test_what_cannot_be_read_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hf.DatasetDict(first=hf.Dataset.from_dict(rows(4, 0))).save_to_disk(tmp_path / "odd")
    with pytest.raises(InputError, match="has the splits first, and none is called train"):
        load(f"hf:{tmp_path / 'odd'}")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="cannot be read by datasets"):
        load(f"hf:{tmp_path / 'empty'}")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match=r"pip install 'fedstill\[datasets\]'"):
        load("hf:imdb")


def test_settings_name_the_labels_and_the_size_of_images(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    images = [Image.fromarray(draw.integers(0, 255, (10 + row, 12, 3)).astype(np.uint8)) for row in range(20)]
    features = hf.Features(
        {"image": hf.Image(), "finding": hf.ClassLabel(names=["well", "ill"]), "y": hf.Value("int64")}
    )
    columns = {"image": images, "finding": [row % 2 for row in range(20)], "y": [row % 4 for row in range(20)]}
    hf.Dataset.from_dict(columns, features=features).save_to_disk(tmp_path / "saved")
    name = f"hf:{tmp_path / 'saved'}"
    with pytest.raises(InputError, match=r"differ in shape.*or set a size, as in hf:.*saved,size=224"):
        load(name)
    bundle = load(f"{name},size=8")
    assert (bundle.shape, bundle.classes, bundle.kind) == ((3, 8, 8), ("well", "ill"), "image")
    assert load(f"{name},size=8,channels=1").shape == (1, 8, 8)
    assert load(f"{name},size=8,label=y").classes == ("0", "1", "2", "3")
    assert load(f"{name},size=8").fingerprint() == bundle.fingerprint() != load(f"{name},size=8,fit=pad").fingerprint()
    for settings, sentence in ((",group=y", "group is no setting of"), (",size=8,label=z", "has no column 'z'")):
        with pytest.raises(InputError, match=sentence):
            load(name + settings)


def test_a_column_of_labels_with_another_name(tmp_path: Path) -> None:
    held = {("kind" if name == "label" else name): column for name, column in rows(20, 0).items()}
    hf.Dataset.from_dict(held).save_to_disk(tmp_path / "saved")
    with pytest.raises(InputError, match=r"none is called label: name it, as in hf:.*,label=COLUMN"):
        load(f"hf:{tmp_path / 'saved'}")
    assert load(f"hf:{tmp_path / 'saved'},label=kind").classes == ("0", "1")
