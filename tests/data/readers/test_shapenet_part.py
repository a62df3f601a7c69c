"""ShapeNet-part from a tiny tree: a label for every point."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedstill.core.dataset import ArrayDataset
from fedstill.core.errors import InputError
from fedstill.data.catalogue import available, check, load
from fedstill.data.point_labels import kind_names
from fedstill.data.readers import shapenet_part
from fedstill.data.readers.raw import FileFindings

KINDS = {"Airplane": ("02691156", (0, 1, 3)), "Mug": ("03797390", (36, 37))}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Two kinds with four shapes each, of 60 points, but for one of 25."""
    home = tmp_path / "shapenetcore_partanno_segmentation_benchmark_v0_normal"
    (home / "train_test_split").mkdir(parents=True)
    (home / shapenet_part.KINDS).write_text("".join(f"{kind}\t{place}\n" for kind, (place, _) in KINDS.items()))
    listed: dict[str, list[str]] = {"train": [], "val": [], "test": []}
    generator = np.random.default_rng(0)
    for place, numbers in KINDS.values():
        (home / place).mkdir()
        for shape, split in zip("abcd", ("train", "train", "val", "test"), strict=True):
            count = 25 if shape == "d" else 60
            part = np.resize(numbers, count)
            table = np.column_stack([generator.normal(size=(count, 3)) + part[:, None], np.zeros((count, 3)), part])
            np.savetxt(home / place / f"{shape}{place}.txt", table, fmt="%.6f")
            listed[split].append(f"shape_data/{place}/{shape}{place}")
    for split, names in listed.items():
        (home / "train_test_split" / f"shuffled_{split}_file_list.json").write_text(json.dumps(names))
    return home


def read(home: Path, points: int = 40) -> tuple[dict[str, shapenet_part.Parts], tuple[str, ...], list[str]]:
    found = FileFindings()
    splits, classes, kinds = shapenet_part.read(home, found, points)
    assert kinds == tuple(KINDS)
    return splits, classes, found.faults


def test_shapenet_part(tree: Path) -> None:
    splits, classes, faults = read(tree)
    assert faults == []
    assert classes == ("Airplane 0", "Airplane 1", "Airplane 2", "Mug 0", "Mug 1")
    assert {name: part.clouds.shape for name, part in splits.items()} == {
        "train": (4, 40, 3),
        "validation": (2, 40, 3),
        "test": (2, 40, 3),
    }
    assert splits["train"].kinds.tolist() == [0, 0, 1, 1]
    for part in splits.values():
        np.testing.assert_allclose(part.clouds.mean(axis=1), 0, atol=1e-6)
        np.testing.assert_allclose(np.linalg.norm(part.clouds, axis=2).max(axis=1), 1, rtol=1e-6)
        for labels, kind in zip(part.labels, part.kinds, strict=True):
            assert set(labels.tolist()) == ({0, 1, 2}, {3, 4})[kind]


def test_points_keep_their_labels(tree: Path) -> None:
    """Points of part p were drawn around (p, p, p): the order along the diagonal is that of the parts."""
    splits, _, _ = read(tree, 60)
    name, cloud, labels = splits["train"].names[0], splits["train"].clouds[0], splits["train"].labels[0]
    table = np.loadtxt(name)
    centred = table[:, :3] - table[:, :3].mean(axis=0)
    centred /= np.linalg.norm(centred, axis=1).max()
    numbers = {0: 0, 1: 1, 3: 2}
    for point, label in zip(cloud, labels, strict=True):
        row = int(np.abs(centred - point).sum(axis=1).argmin())
        np.testing.assert_allclose(centred[row], point, atol=1e-5)
        assert numbers[int(table[row, 6])] == label


def test_small_shapes_repeat_points_and_hold_all_of_them(tree: Path) -> None:
    splits, _, _ = read(tree, 40)
    for cloud in splits["test"].clouds:
        assert len(np.unique(cloud, axis=0)) == 25


def test_it_loads_by_name_and_again_from_the_cache(tree: Path, cache: Path) -> None:
    bundle = load("shapenet-part", tree.parent)
    assert (bundle.shape, len(bundle.train), len(bundle.test)) == ((2048, 3), 4, 2)
    assert bundle.validation is not None
    assert isinstance(bundle.train, ArrayDataset)
    assert bundle.train.columns["category"].tolist() == [0, 0, 1, 1]
    assert kind_names(bundle) == bundle.categories == ("Airplane", "Mug")
    assert len(list(cache.glob("*.npz"))) == 1
    assert load("shapenet-part", tree.parent).fingerprint() == bundle.fingerprint()
    next(cache.glob("*.npz")).write_bytes(b"torn")
    assert load("shapenet-part", tree.parent).fingerprint() == bundle.fingerprint()
    changed = tree / "02691156" / "a02691156.txt"
    changed.write_text(changed.read_text().replace("0.000000 3.000000", "0.000000 1.000000"))
    assert load("shapenet-part", tree.parent).fingerprint() != bundle.fingerprint()
    assert len(list(cache.glob("*.npz"))) == 1
    report = check("shapenet-part", root=tree.parent)
    assert report.usable
    assert report.fingerprint == load("shapenet-part", tree.parent).fingerprint()
    assert report.counted == "points"
    assert next(entry for entry in available(tree.parent) if entry.name == "shapenet-part").where == str(tree)


def _columns(tree: Path) -> None:
    (tree / "03797390" / "a03797390.txt").write_text("1 2 3 4\n2 3 4 5\n")


def _words(tree: Path) -> None:
    (tree / "03797390" / "a03797390.txt").write_text("once upon a time there was a mug\n")


def _fractions(tree: Path) -> None:
    (tree / "03797390" / "a03797390.txt").write_text("0 0 0 0 0 0 36\n1 0 0 0 0 0 36.5\n")


def _no_number(tree: Path) -> None:
    (tree / "03797390" / "a03797390.txt").write_text("0 0 0 0 0 0 36\nnan 0 0 0 0 0 36\n")


def _empty(tree: Path) -> None:
    (tree / "03797390" / "a03797390.txt").write_text("")


def _gone(tree: Path) -> None:
    (tree / "03797390" / "a03797390.txt").unlink()


def _twice(tree: Path) -> None:
    (tree / "03797390" / "a03797390.txt").write_text("0 0 0 0 0 0 36\n1 0 0 0 0 0 1\n")


def _no_list(tree: Path) -> None:
    (tree / "train_test_split" / "shuffled_test_file_list.json").unlink()


def _bad_list(tree: Path) -> None:
    (tree / "train_test_split" / "shuffled_test_file_list.json").write_text("[" * 100_000)


def _bad_kinds(tree: Path) -> None:
    (tree / shapenet_part.KINDS).write_text("Airplane\n")


def _no_kinds(tree: Path) -> None:
    (tree / shapenet_part.KINDS).unlink()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_columns, "a03797390.txt has 4 columns, expected are x y z nx ny nz part"),
        (_words, "a03797390.txt is no table of numbers"),
        (_fractions, "a03797390.txt: parts, in the last column, should be whole numbers"),
        (_no_number, "a03797390.txt: 1 of 2 points are NaN or infinite"),
        (_empty, "a03797390.txt is empty"),
        (_gone, "names 1 shapes that do not exist: 03797390/a03797390.txt"),
        (_twice, "part 1 is of two kinds of things, Airplane and Mug"),
        (_no_list, "shuffled_test_file_list.json does not exist"),
        (_bad_list, "shuffled_test_file_list.json should be a list of names"),
        (_bad_kinds, "should hold lines of a kind's name and its folder"),
        (_no_kinds, "holds no synsetoffset2category.txt"),
    ],
)
def test_bad_files_are_one_sentence_that_names_them(tree: Path, spoil: Callable[[Path], None], words: str) -> None:
    spoil(tree)
    with pytest.raises(InputError, match=words):
        load("shapenet-part", tree.parent)
    report = check("shapenet-part", root=tree.parent)
    assert not report.usable
    assert any(words in problem for problem in report.problems)
