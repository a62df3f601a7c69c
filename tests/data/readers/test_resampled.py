from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedstill.core.errors import InputError
from fedstill.data.catalogue import check, load
from fedstill.data.clouds import normalise

Write = Callable[..., Path]


@pytest.fixture
def home(tmp_path: Path, write_cloud: Write) -> Path:
    """Two classes of ModelNet40, one of them in ModelNet10 as well, 2,060 rows to a shape."""
    folder = tmp_path / "modelnet40_normal_resampled"
    names = [f"{kind}_{number:04d}" for kind in ("night_stand", "airplane") for number in range(1, 6)]
    for number, name in enumerate(names):
        write_cloud(folder / name.rpartition("_")[0] / f"{name}.txt", number, points=2060, mark=",")
    (folder / "modelnet40_shape_names.txt").write_text("airplane\nnight_stand\n")
    for prefix, some in (("modelnet40", names), ("modelnet10", names[:5])):
        (folder / f"{prefix}_train.txt").write_text("".join(f"{name}\n" for name in some if int(name[-1]) < 4))
        (folder / f"{prefix}_test.txt").write_text("".join(f"{name}\n" for name in some if int(name[-1]) >= 4))
    (folder / "modelnet10_shape_names.txt").write_text("night_stand\n")
    return folder


def test_the_first_rows_of_every_shape(tmp_path: Path, home: Path) -> None:
    bundle = load("modelnet40", tmp_path)
    assert (bundle.classes, bundle.shape) == (("airplane", "night_stand"), (2048, 3))
    assert bundle.train.labels().tolist() == [1, 1, 1, 0, 0, 0]  # in the order of the split file
    assert bundle.test.labels().tolist() == [1, 1, 0, 0]
    rows = np.loadtxt(home / "night_stand" / "night_stand_0002.txt", delimiter=",")[:, :3]
    assert np.allclose(bundle.train.columns["inputs"][1], normalise(rows[:2048].copy()), atol=1e-6)
    few = bundle.with_points(1024).train.columns["inputs"][1]
    assert np.allclose(few, normalise(rows[:1024].copy()), atol=1e-6)  # as if only these had been read
    assert check("modelnet40", root=tmp_path).ok


def test_the_split_files_are_chosen_by_name(tmp_path: Path, home: Path) -> None:
    assert load("modelnet10", tmp_path).classes == ("night_stand",)
    bundle = load(f"folder:{home}")
    assert len(bundle.classes) == 2
    assert "split files for modelnet10, modelnet40: those of modelnet40 are used" in bundle.notes[0]


def test_missing_shapes_and_broken_ones_are_all_listed(tmp_path: Path, home: Path) -> None:
    for number in (1, 2, 3):
        (home / "airplane" / f"airplane_000{number}.txt").unlink()
    (home / "night_stand" / "night_stand_0001.txt").write_text("")
    (home / "night_stand" / "night_stand_0004.txt").write_text("1,2,3\n1,2,nan\n")
    with (home / "modelnet40_train.txt").open("a") as file:
        file.write("airplane_0009\n")
    problems = check("modelnet40", root=tmp_path).problems
    assert f"{home}/modelnet40_train.txt names 4 shapes that do not exist: airplane/airplane_0001.txt, " in problems[0]
    assert problems[0].endswith("airplane/airplane_0003.txt and 1 more")
    assert problems[1].endswith("night_stand_0001.txt is empty (0 bytes): fetch it again")
    assert problems[2].endswith("night_stand_0004.txt: 1 of 2 points are NaN or infinite")
    assert "class 'airplane' has no training samples: add some, or take the class away" in problems
    with pytest.raises(InputError, match=r"names 4 shapes that do not exist"):
        load("modelnet40", tmp_path)


def test_names_that_lead_elsewhere_are_no_shapes(tmp_path: Path, home: Path, write_cloud: Write) -> None:
    write_cloud(tmp_path / "chair" / "airplane_0007.txt", points=2060, mark=",")
    with (home / "modelnet40_train.txt").open("a") as file:
        file.write(f"/etc/airplane_0001\n../chair/airplane_0007\n{tmp_path}/chair/airplane_0007\n")
    (problem,) = check("modelnet40", root=tmp_path).problems
    assert f"{home}/modelnet40_train.txt names 3 shapes that do not exist: /etc/airplane/" in problem


def test_lists_that_do_not_fit(tmp_path: Path, home: Path) -> None:
    (home / "modelnet40_shape_names.txt").write_text("airplane\n")
    with pytest.raises(InputError, match=r"modelnet40_shape_names.txt lacks the classes night_stand"):
        load("modelnet40", tmp_path)
    (home / "modelnet40_shape_names.txt").unlink()
    assert load("modelnet40", tmp_path).classes == ("airplane", "night_stand")
    (home / "modelnet40_test.txt").write_text("")
    with pytest.raises(InputError, match=r"modelnet40_test.txt names no shapes"):
        load("modelnet40", tmp_path)
